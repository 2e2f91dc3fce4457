"""The known error of a shift in int8 rows is taken out of delta_y again.

Under a constant gradient g the exact shift d gives delta_y = -A*(g + d).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.scripted import session_of
from support.update_bytes import numbers

from kellet import kernels
from kellet.sdk.algorithms import Scaffold
from kellet.sdk.plan.manifest import layout
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.trainer import Data, train

TENSORS = layout([("w", (16, 300), "train", "mean"), ("b", (16,), "train", "mean")])
SHAPES = Shapes.of(TENSORS)
N, WEIGHTS = SHAPES.n_train, 4800
DATA = Data(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
STEPS, LR = 8, 2.0**-6
A = STEPS * LR
G, C, C_I = (numbers(name, N, 2.0**-18) for name in ("g", "c", "c_i"))
D = (C.astype(np.float64) - C_I).astype(np.float32)


def delta_y(scheme: str, *, int8_shift: bool = False, seed: int = 0) -> Any:
    outcome = train(
        session_of(TENSORS, scheme, lambda _step, _at: G),
        Scaffold(local_lr=LR, batch_size=0, local_steps=STEPS),
        DATA,
        x=numbers("x", N, 2.0**-20),
        shapes=SHAPES,
        c=C,
        c_i=kernels.to_grid(C_I),
        seed=seed,
        device="a",
        round_=1,
        int8_shift=int8_shift,
    )
    return outcome.delta_y[:].astype(np.float64)


def shift_error(rows: Any) -> Any:
    """Q(d) - d, elementwise."""
    return kernels.dequantise(kernels.quantise(D, rows)).astype(np.float64) - D


def exact() -> Any:
    return -A * (G.astype(np.float64) + D)


def test_float32_weights_with_an_int8_shift_end_where_an_exact_shift_would() -> None:
    moved = delta_y("f32/1", int8_shift=True)
    error = shift_error(SHAPES.train)
    assert np.abs(A * error).max() > 1e-4
    assert np.abs(moved - exact()).max() < 2e-6  # float32
    assert np.abs(delta_y("f32/1") - exact()).max() < 2e-6
    # Left in, it would be found to the last digit.
    uncorrected = moved - A * error
    assert np.abs(uncorrected - exact() + A * error).max() < 2e-6


def test_int8_weights_are_off_by_the_rounding_of_y_alone() -> None:
    """Over 64 seeds the mean tends to the exact shift's; uncorrected, to another value."""
    mean = np.mean([delta_y("w8.row/1", seed=seed) for seed in range(64)], axis=0)[:WEIGHTS]
    rows = kernels.quantise(D[:WEIGHTS], np.array([16, 300]))
    error = A * (kernels.dequantise(rows).astype(np.float64) - D[:WEIGHTS])
    off = mean - exact()[:WEIGHTS]
    # What is left is noise: it has nothing of the shift's error in it.
    share = float(off @ error / (error @ error))
    assert abs(share) < 0.05
    uncorrected = off - error
    assert float(uncorrected @ error / (error @ error)) == pytest.approx(-1, abs=0.05)


def test_tensors_of_one_dimension_have_an_exact_shift() -> None:
    moved = delta_y("w8.row/1")[WEIGHTS:]
    assert np.abs(moved - exact()[WEIGHTS:]).max() < 2e-6
