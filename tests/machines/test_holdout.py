"""A device's own hold-out: never trained on, always the same, judged by the received model."""

from __future__ import annotations

import math
import queue

import numpy as np
import pytest
from support.rounds import round_of
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import StartTraining, Trained
from kellet.sdk.errors import DataError
from kellet.sdk.holdout import split_holdout
from kellet.sdk.outgoing import Announced
from kellet.sdk.protocol.messages import Blob
from kellet.sdk.store import Store
from kellet.sdk.trainer import Data
from kellet.sdk.worker import TrainingWorker


def samples(n: int) -> Data:
    x = np.arange(2 * n, dtype=np.float32).reshape(n, 2) / 10
    return Data(x, (np.arange(n) % 2).astype(np.int64))


def test_nothing_is_held_out_unless_asked_for() -> None:
    data = samples(5)
    train, held = split_holdout(data, 0.0, "pi")
    assert train is data
    assert held is None


def test_the_split_is_whole_disjoint_and_the_devices_own() -> None:
    data = samples(10)
    train, held = split_holdout(data, 0.25, "pi")
    assert held is not None
    assert (len(train), len(held)) == (8, 2)
    rows = np.concatenate([train.x, held.x])
    assert np.array_equal(rows[np.argsort(rows[:, 0])], data.x)
    again, _ = split_holdout(data, 0.25, "pi")
    assert np.array_equal(again.x, train.x)
    chosen = {split_holdout(data, 0.25, f"pi-{k}")[1].x.tobytes() for k in range(20)}  # type: ignore[union-attr]
    assert len(chosen) > 5


def test_an_empty_side_is_refused() -> None:
    with pytest.raises(DataError, match=r"hold-out of 0\.1 of 5 samples"):
        split_holdout(samples(5), 0.1, "pi")


def test_the_received_model_is_judged_before_training() -> None:
    """At zero every class has probability 1/2: the loss is ln 2, class 0 wins every tie."""
    plan = softmax_regression(2, 2)
    store, cache = Store("pi"), BlobCache()
    model = np.zeros(plan.n_params, "<f4").tobytes()
    cache.put(plan.raw)
    algorithm = FedAvg(local_lr=0.1)
    blob = Blob(cache.put(model), len(model))
    announcement = round_of(plan, algorithm, model=blob, deadline=10.0, valid=10.0)
    events: queue.SimpleQueue[object] = queue.SimpleQueue()
    data = samples(8)
    worker = TrainingWorker(
        "pi", store, cache, load=lambda: (data.x, data.y), holdout=0.5, answer=events.put
    )
    worker.start(StartTraining(Announced(announcement, bytes(32), algorithm), 10.0))
    event = events.get(timeout=30)
    worker.stop()

    assert isinstance(event, Trained)
    assert event.outcome.samples == 4
    held = split_holdout(data, 0.5, "pi")[1]
    assert held is not None
    assert event.holdout is not None
    assert event.holdout.samples == 4
    assert event.holdout.loss == pytest.approx(math.log(2), abs=1e-7)
    assert event.holdout.accuracy == np.mean(held.y == 0)
