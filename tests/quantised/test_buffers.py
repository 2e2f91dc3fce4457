"""Buffers beside int8 weights: averaged ones travel, local ones stay, option I moves neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.scripted import ScriptedFloat, ScriptedInt8

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.plan.manifest import layout
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.trainer import Data, Outcome, train

TENSORS = layout(
    [
        ("w", (2, 3), "train", "mean"),
        ("b", (2,), "train", "mean"),
        ("seen", (1,), "buffer", "mean"),
        ("mine", (2,), "buffer", "local"),
        ("fixed", (2, 2), "frozen", "mean"),
        ("offset", (1,), "frozen", "mean"),
    ]
)
SHAPES = Shapes.of(TENSORS)
MINE = slice(9, 11)  # behind 8 trained and one averaged
DATA = Data(np.zeros((2, 1), np.float32), np.zeros(2, np.int64))
X = np.array([1, -1, 0.5, 0.25, 1, 1, 4, 5, 10, 20, 30], np.float32)


def still(_step: int, _at: Any) -> Any:
    return np.zeros(8, np.float32)


class Int8(ScriptedInt8):
    """Each step adds 1 to the buffers; frozen ones lie behind them in ``rest``."""

    def step(self, x: Any, y: Any) -> float:
        self.rest[2:5] += 1
        return super().step(x, y)


class Float(ScriptedFloat):
    def step(self, x: Any, y: Any) -> float:
        self.params[8:11] += 1
        return super().step(x, y)


def run(session: Any, algorithm: FedAvg, kept: Any = None) -> Outcome:
    return train(
        session,
        algorithm,
        DATA,
        x=X,
        shapes=SHAPES,
        c=np.zeros(8, np.float32),
        c_i=np.zeros(8, np.int64),
        seed=0,
        device="a",
        round_=1,
        local=[MINE],
        kept=kept,
    )


@pytest.fixture(params=["f32/1", "w8.row/1"])
def session(request: pytest.FixtureRequest) -> Any:
    if request.param == "f32/1":
        return Float(TENSORS, still)
    return Int8(TENSORS, request.param, still)


def test_averaged_buffers_travel_and_local_ones_stay(session: Any) -> None:
    outcome = run(session, FedAvg(batch_size=0, local_steps=3))
    assert outcome.delta_y[:].tolist() == [0] * 8 + [3, 0, 0]
    assert outcome.kept is not None
    assert outcome.kept.tolist() == [23, 33]
    again = run(session, FedAvg(batch_size=0, local_steps=3), outcome.kept)
    assert again.delta_y[:].tolist() == [0] * 8 + [3, 0, 0]
    assert again.kept is not None
    assert again.kept.tolist() == [26, 36]


def test_the_pass_for_option_one_leaves_them_as_they_were(session: Any) -> None:
    outcome = run(session, Scaffold(option="I", batch_size=1, local_steps=1))
    assert outcome.delta_y[:].tolist() == [0] * 8 + [1, 0, 0]
    assert outcome.kept is not None
    assert outcome.kept.tolist() == [21, 31]
    assert outcome.delta_c is not None
    assert outcome.delta_c[:].tolist() == [0] * 8


def test_frozen_tensors_are_not_touched() -> None:
    session = Int8(TENSORS, "w8.row/1", still)
    session.rest[5] = 7.0
    run(session, FedAvg(batch_size=0, local_steps=3))
    assert session.rest.tolist() == [4, 5, 13, 23, 33, 7]
