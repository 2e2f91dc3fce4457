"""Training on its own thread: one answer for each training that is still wanted."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from support.rounds import round_of
from support.toy_plans import quadratic

from kellet.sdk.algorithms import Scaffold
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import StartTraining, Trained
from kellet.sdk.errors import DataError
from kellet.sdk.outgoing import Announced
from kellet.sdk.protocol.messages import Blob, Codecs
from kellet.sdk.store import Store
from kellet.sdk.worker import LoadData, TrainingBroke, TrainingWorker

PLAN = quadratic(initial=1.0)


def data() -> tuple[object, object]:
    return np.array([[1.0, 0.0]]), np.zeros(1)


def fetch(cache: BlobCache) -> tuple[bytes, bytes]:
    """What a device does before each training; the digests of model and control."""
    cache.put(PLAN.raw)
    return cache.put(PLAN.initial().tobytes()), cache.put(np.zeros(1, np.float32).tobytes())


def setting(
    steps: int, load: LoadData = data, cache: BlobCache | None = None
) -> tuple[TrainingWorker, StartTraining, list[Any]]:
    cache, answers = cache or BlobCache(), []
    model, control = fetch(cache)
    algorithm = Scaffold(local_lr=0.001, local_steps=steps)
    round_ = round_of(
        PLAN,
        algorithm,
        model=Blob(model, 4),
        control=Blob(control, 4),
        codecs=Codecs(delta_c="derived"),
    )
    worker = TrainingWorker(
        "a",
        Store("a"),
        cache,
        load=load,
        holdout=0.0,
        answer=answers.append,
    )
    return worker, StartTraining(Announced(round_, b"b" * 32, algorithm), 50.0), answers


def wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not until():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_training_that_ends_is_answered() -> None:
    worker, effect, answers = setting(steps=3)
    worker.start(effect)
    wait(lambda: bool(answers))
    assert isinstance(answers[0], Trained)
    assert (answers[0].base, answers[0].outcome.steps) == (b"b" * 32, 3)
    worker.stop()
    assert len(answers) == 1


def test_a_training_that_was_stopped_half_way_is_not_answered() -> None:
    """Or its outcome, from a control that has gone, would stand for the next one's."""
    cache = BlobCache()
    worker, effect, answers = setting(steps=10**9, cache=cache)
    worker.start(effect)
    wait(lambda: worker.progress[0] > 0)
    fetch(cache)
    worker.start(effect)  # the same announcement, trained for anew after enrolling anew
    assert answers == []
    worker.stop()
    assert answers == []


def test_time_that_runs_out_is_partial_work_and_counts() -> None:
    worker, effect, answers = setting(steps=10**9)
    worker.start(StartTraining(effect.announced, 0.5))
    wait(lambda: bool(answers))
    assert 1 <= answers[0].outcome.steps < 10**9
    worker.stop()


def test_who_is_hurried_answers_with_the_steps_it_has() -> None:
    worker, effect, answers = setting(steps=10**9)
    worker.start(effect)
    worker.want(effect.announced.base)
    wait(lambda: worker.progress[0] > 0)
    assert answers == []
    worker.want(effect.announced.base, hurried=True)
    wait(lambda: bool(answers))
    assert 1 <= answers[0].outcome.steps < 10**9
    assert answers[0].outcome.stopped == "the rounds have gone on"
    worker.stop()


def test_a_data_function_that_exits_is_answered() -> None:
    """``sys.exit()`` ends a thread without a word, and the device would wait for ever."""
    worker, effect, answers = setting(steps=3, load=lambda: sys.exit("no sensor"))
    worker.start(effect)
    wait(lambda: bool(answers))
    assert isinstance(answers[0], TrainingBroke)
    assert isinstance(answers[0].error, DataError)
    assert "left by SystemExit: no sensor" in str(answers[0].error)
    worker.stop()


def test_a_data_function_that_takes_long_does_not_hold_up_the_end() -> None:
    done = threading.Event()

    def slow() -> tuple[object, object]:
        done.wait(30)
        return data()

    cache = BlobCache()
    worker, effect, answers = setting(steps=3, load=slow, cache=cache)
    worker.start(effect)
    worker.leave()
    fetch(cache)
    began = time.monotonic()
    worker.start(effect)  # the next round's, which would wait for the first
    worker.stop()
    assert 1.5 < time.monotonic() - began < 3
    done.set()
    assert answers == []
