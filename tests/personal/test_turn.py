"""A personal model within a device's round: time, second thoughts, and things that go wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from support.rounds import round_of
from support.toy_plans import quadratic

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import StartTraining
from kellet.sdk.outgoing import Announced, update_of
from kellet.sdk.personal import Ditto, FineTune, Personal
from kellet.sdk.protocol.messages import Blob
from kellet.sdk.store import Store
from kellet.sdk.worker import TrainingWorker

PLAN = quadratic()
BASE = b"b" * 32
ENDLESS = 10**9


class Lab:
    """A device's worker, its store, and what it answers."""

    def __init__(self, *, holdout: float = 0.0, personal: bool = True) -> None:
        self.store, self.cache = Store("a"), BlobCache()
        self.answers: list[Any] = []
        data = np.array([[2.0, 1.0], [2.0, 1.0]], np.float32), np.zeros(2)
        self.worker = TrainingWorker(
            "a",
            self.store,
            self.cache,
            load=lambda: data,
            holdout=holdout,
            answer=self.answers.append,
            personal=personal,
        )

    def start(self, own: Any, *, steps: int = 1, seconds: float = 50.0) -> Announced:
        algorithm = FedAvg(local_lr=0.125, local_steps=steps)
        self.cache.put(PLAN.raw)
        wire = own.wire() if isinstance(own, Personal) else own
        model = Blob(self.cache.put(PLAN.initial().tobytes()), 4)
        message = round_of(PLAN, algorithm, model=model, personal=wire)
        announced = Announced(message, BASE, algorithm)
        self.worker.start(StartTraining(announced, seconds))
        return announced

    def answer(self) -> Any:
        wait(lambda: bool(self.answers))
        self.worker.stop()
        return self.answers.pop()

    def v(self) -> list[float] | None:
        stored = self.store.personal.find(PLAN.id)
        if stored is None:
            return None
        out = np.zeros(stored.n, np.float32)
        stored.read_into(out)
        return out.tolist()


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not until():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_it_is_on_the_shelf_before_the_answer() -> None:
    lab = Lab(holdout=0.5)
    lab.start(Ditto(0.5, steps=1, local_lr=0.25))
    answer = lab.answer()
    assert lab.v() == [0.5]
    assert answer.facts["personal_steps"] == 1
    assert answer.facts["personal_loss"] == 1.0
    assert (answer.holdout.loss, answer.turn.judged.loss) == (1.0, 0.25)


def test_time_that_runs_out_leaves_the_steps_that_were_run() -> None:
    lab = Lab()
    lab.start(Ditto(0.5, steps=ENDLESS, local_lr=0.25), seconds=0.5)
    answer = lab.answer()
    assert 1 <= answer.turn.ran.steps < ENDLESS
    assert answer.turn.ran.stopped == "the round's time is up"
    assert lab.v() is not None


def test_the_fleets_model_comes_first() -> None:
    """It takes all of the time: the device's own is as it was."""
    lab = Lab(holdout=0.5)
    lab.store.personal.save(PLAN.id, b"earlier announcement" + bytes(12), 1, np.float32([0.75]))
    lab.start(Ditto(0.5), steps=ENDLESS, seconds=0.5)
    answer = lab.answer()
    assert answer.outcome.steps > 1
    assert answer.facts["personal"] == "the round's time is up"
    assert lab.v() == [0.75]
    assert answer.turn.judged.loss == 0.0625  # of the one that it has


def test_a_round_that_is_not_wanted_any_more_leaves_it_alone() -> None:
    lab = Lab()
    lab.start(Ditto(0.5, steps=ENDLESS, local_lr=0.25))
    wait(lambda: lab.worker.progress == (1, 1))  # the fleet's model is done
    time.sleep(0.05)
    lab.worker.stop()
    assert lab.answers == []
    assert lab.v() is None


def test_a_training_that_goes_wrong_leaves_it_alone() -> None:
    """At the rate 1e30 w is beyond float32 after two steps."""
    lab = Lab()
    lab.store.personal.save(PLAN.id, b"earlier announcement" + bytes(12), 1, np.float32([0.75]))
    lab.start(FineTune(steps=3, local_lr=1e30))
    with np.errstate(over="ignore", invalid="ignore"):
        answer = lab.answer()
    assert "personal model" in answer.facts["personal"]
    assert lab.v() == [0.75]
    assert answer.outcome.steps == 1


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"name": "knn"}, "no way to personalise 'knn'"),
        ({"name": "ditto", "lam": 0.5, "depth": 3}, "ditto has no 'depth'"),
        ({"name": "ditto", "lam": 100.0}, "diverges from 2 upwards"),
        ({"name": "finetune", "tensors": ["head"]}, "trains no tensor 'head'"),
    ],
)
def test_what_it_cannot_follow_is_left_out_and_the_fleet_served(own: Any, why: str) -> None:
    lab = Lab()
    lab.start(own)
    answer = lab.answer()
    assert why in answer.facts["personal"]
    assert answer.outcome.delta_y[:].tolist() == [0.25]
    assert lab.v() is None


@pytest.mark.parametrize(
    ("holdout", "personal", "own", "told"),
    [
        (0.5, True, Ditto(0.5), True),
        (0.0, True, Ditto(0.5), False),
        (0.5, False, Ditto(0.5), False),
        (0.5, True, msgspec.UNSET, False),
    ],
)
def test_what_an_update_tells(holdout: float, personal: bool, own: Any, told: bool) -> None:
    lab = Lab(holdout=holdout, personal=personal)
    announced = lab.start(own)
    answer = lab.answer()
    judged = answer.turn.judged if answer.turn else None
    pending = update_of(lab.store, announced, answer.outcome, answer.holdout, judged)
    assert (b"personal_loss" in bytes(pending.body[:])) == told
    assert (b"personal_accuracy" in bytes(pending.body[:])) == told
    assert (lab.v() is not None) == (personal and isinstance(own, Personal))
