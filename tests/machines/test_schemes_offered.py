"""A device takes the first scheme on offer that it can train in, or says why there is none."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from support.rounds import round_of
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import StartTraining, Trained, TrainingStopped
from kellet.sdk.errors import PlanError
from kellet.sdk.outgoing import Announced
from kellet.sdk.plan import Plan
from kellet.sdk.protocol.messages import Blob, Codecs
from kellet.sdk.store import Store
from kellet.sdk.variants import add_variants
from kellet.sdk.worker import Abilities, TrainingWorker

OFFER = ("w8.row/1", "f32/1")
SCAFFOLD = Scaffold(local_lr=0.1, local_steps=4)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return add_variants(softmax_regression(128, 3))


def answer(
    plan: Plan,
    abilities: Abilities | None = None,
    algorithm: FedAvg = SCAFFOLD,
    *,
    offer: tuple[str, ...] = OFFER,
    codecs: Codecs | None = None,
) -> Any:
    """What a device answers to one announcement."""
    cache, answers, answered = BlobCache(), [], threading.Event()
    cache.put(plan.raw)
    model = plan.initial()[: plan.n_update].tobytes()
    control = np.linspace(-0.25, 0.5, plan.n_train, dtype=np.float32).tobytes()
    derived = Codecs(delta_c="derived") if algorithm.controls else Codecs()
    round_ = round_of(
        plan,
        algorithm,
        model=Blob(cache.put(model), len(model)),
        control=Blob(cache.put(control), len(control)) if algorithm.controls else None,
        codecs=codecs or derived,
        schemes=offer,
    )

    def hear(event: Any) -> None:
        answers.append(event)
        answered.set()

    rng = np.random.default_rng(0)
    worker = TrainingWorker(
        "a",
        Store("a"),
        cache,
        load=lambda: (
            rng.standard_normal((40, *plan.manifest.input.shape)),
            rng.integers(0, 3, 40),
        ),
        holdout=0.0,
        answer=hear,
        abilities=abilities,
    )
    worker.start(StartTraining(Announced(round_, b"b" * 32, algorithm), 50.0))
    assert answered.wait(20)
    worker.stop()
    return answers[0]


def scheme(event: Any) -> str:
    assert isinstance(event, Trained), event
    return event.outcome.scheme


def test_the_first_that_it_can(plan: Plan) -> None:
    assert scheme(answer(plan)) == "w8.row/1"
    assert scheme(answer(plan, offer=("f32/1", "w8.row/1"))) == "f32/1"
    assert scheme(answer(plan, offer=("w9/1", "w8.row+a8/2", "w8.block64/1"))) == "w8.block64/1"
    assert scheme(answer(plan, Abilities(schemes=["f32"]))) == "f32/1"
    assert scheme(answer(plan, Abilities(schemes=["f32", "w8.row"]))) == "w8.row/1"


def test_what_does_not_fit_is_passed_over(plan: Plan) -> None:
    asked = []

    def misfit(of: Plan, algorithm: FedAvg, name: str, batch: int) -> str:
        asked.append((of.id, algorithm.name, name, batch))
        return "" if name == "f32/1" else "it takes 80 MB of 64"

    assert scheme(answer(plan, Abilities(misfit=misfit))) == "f32/1"
    assert asked == [(plan.id, "scaffold", name, 32) for name in OFFER]


def test_a_self_test_that_fails_is_passed_over(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Plan.self_test

    def self_test(self: Plan, scheme: str = "f32/1") -> Any:
        if scheme != "f32/1":
            raise PlanError("the plan's self-test fails", why="the loss is off by .5")
        return real(self, scheme)

    monkeypatch.setattr(Plan, "self_test", self_test)
    assert scheme(answer(plan)) == "f32/1"
    event = answer(plan, Abilities(schemes=["w8.row"]))
    assert isinstance(event, TrainingStopped)
    assert "w8.row/1: the plan's self-test fails: the loss is off by .5" in event.reason
    assert "f32/1: this device's profile leaves it out" in event.reason


def test_none_that_passes_is_said_with_each_reason(plan: Plan) -> None:
    abilities = Abilities(
        schemes=["w8.row", "f32"], misfit=lambda _p, _a, name, _b: f"{name} is too big"
    )
    event = answer(plan, abilities, offer=("w8.row+a8/1", "w8.row/1", "f32/1"))
    assert isinstance(event, TrainingStopped)
    assert event.reason == (
        "no scheme on offer can be trained here; "
        "w8.row+a8/1: this device's profile leaves it out; "
        "w8.row/1: w8.row/1 is too big; f32/1: f32/1 is too big"
    )
    bare = softmax_regression(128, 3)
    alone = answer(bare, offer=("w8.row+a8/1",))
    assert alone.reason.endswith("w8.row+a8/1: the plan has no such variant")


def test_momentum_leaves_float32_with_a_float32_shift(plan: Plan) -> None:
    algorithm = Scaffold(local_lr=0.1, local_steps=4, momentum=0.5)
    assert scheme(answer(plan, algorithm=algorithm)) == "f32/1"
    event = answer(plan, Abilities(shift="int8"), algorithm)
    assert isinstance(event, TrainingStopped)
    assert event.reason.count("no int8 step has one") == 2
    fedavg = FedAvg(local_lr=0.1, local_steps=4, momentum=0.5)
    assert scheme(answer(plan, Abilities(shift="int8"), fedavg)) == "f32/1"  # it has no shift


def test_the_shift_is_held_as_the_profile_says(plan: Plan) -> None:
    exact, rows = (
        answer(plan, Abilities(shift=shift, schemes=["f32"])).outcome.delta_y[:]
        for shift in ("f32", "int8")
    )
    assert exact.tobytes() != rows.tobytes()
    assert rows == pytest.approx(exact, abs=1e-3)


def test_the_codec_is_the_profiles_where_it_is_accepted(plan: Plan) -> None:
    accepted = Codecs(delta_y=("f32", "q8"), delta_c="derived")
    assert answer(plan, Abilities(codec="q8"), codecs=accepted).outcome.codec == "q8"
    assert answer(plan, Abilities(codec="topk"), codecs=accepted).outcome.codec == "f32"
    assert answer(plan, codecs=Codecs(delta_y=("q8",), delta_c="derived")).outcome.codec == "q8"


def test_a_device_that_becomes_unfit_returns_what_it_has(plan: Plan) -> None:
    asked = []

    def unfit() -> str:
        asked.append(time.monotonic())
        return "81 degrees" if len(asked) == 3 else ""

    began = time.monotonic()
    event = answer(plan, Abilities(unfit=unfit), FedAvg(local_lr=0.01, local_steps=10**9))
    assert isinstance(event, Trained)
    assert event.outcome.stopped == "81 degrees"
    assert 1 <= event.outcome.steps < 10**9
    assert len(asked) == 3  # at once, then once a second
    assert 2 <= asked[-1] - asked[0] < 4
    assert time.monotonic() - began < 8
