"""Rows of zeros, single elements, overflow, exploding rates: finite, or refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.scripted import session_of

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.errors import PlanError, UsageError
from kellet.sdk.plan.manifest import layout
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.trainer import Data, Outcome, TrainingFailed, train
from kellet.sdk.uplink import Uplink

DATA = Data(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))
INT8 = ("w8.row/1", "w8.block64/1")
SCHEMES = ("f32/1", *INT8)
TENSORS = layout([("w", (3, 64), "train", "mean"), ("b", (3,), "train", "mean")])
N = 195


def run(
    scheme: str,
    gradient: Any,
    algorithm: FedAvg | None = None,
    *,
    tensors: Any = TENSORS,
    x: Any = None,
    **options: Any,
) -> Outcome:
    shapes = Shapes.of(tensors)
    n = shapes.n_train
    algorithm = algorithm or FedAvg(local_lr=0.125, batch_size=0, local_steps=4)
    return train(
        session_of(tensors, scheme, gradient),
        algorithm,
        DATA,
        x=np.zeros(shapes.n_update, np.float32) if x is None else np.asarray(x, np.float32),
        shapes=shapes,
        c=np.zeros(n, np.float32) if algorithm.controls else None,
        c_i=np.zeros(n, np.int64) if algorithm.controls else None,
        **{"seed": 0, "device": "a", "round_": 1} | options,
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(batch_size=0, local_steps=3),
        FedProx(batch_size=0, local_steps=3),
        Scaffold(batch_size=0, local_steps=3),
    ],
    ids=lambda algorithm: algorithm.name,
)
def test_zeros_without_a_gradient_stay_zeros(scheme: str, algorithm: FedAvg) -> None:
    outcome = run(scheme, lambda _step, _at: np.zeros(N, np.float32), algorithm)
    assert not outcome.delta_y[:].any()
    assert outcome.drift == 0
    if outcome.delta_c is not None:
        assert not outcome.delta_c[:].any()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_row_of_zeros_leaves_zero_under_a_constant_gradient(scheme: str) -> None:
    """One row has a gradient of .25: -.25*.125*4 = -.125 for each of its weights."""
    gradient = np.zeros(N, np.float32)
    gradient[:64] = 0.25
    moved = run(scheme, lambda _step, _at: gradient).delta_y[:]
    # All weights of the row are alike, 117.6 units each after a refit: within a unit and a half.
    assert moved[:64] == pytest.approx(-0.125, abs=0 if scheme == "f32/1" else 0.125 * 1.5 / 117)
    assert not moved[64:].any()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold])
def test_one_element_tensors(scheme: str, algorithm: Any) -> None:
    tensors = layout([("w", (1, 1), "train", "mean"), ("b", (1,), "train", "mean")])
    outcome = run(
        scheme,
        lambda _step, _at: np.ones(2, np.float32),
        algorithm(local_lr=0.125, batch_size=0, local_steps=2),
        tensors=tensors,
        x=[1.0, 1.0],
    )
    assert outcome.delta_y[1:] == -0.25
    assert outcome.delta_y[:1] == pytest.approx(-0.25, abs=0.02)
    if outcome.delta_c is not None:
        assert kernels.from_grid(outcome.delta_c[:]) == pytest.approx([1, 1], abs=0.08)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_plan_without_tensors_of_one_dimension(scheme: str) -> None:
    tensors = layout([("w", (2, 64), "train", "mean")])
    for algorithm in (FedAvg, FedProx, Scaffold):
        outcome = run(
            scheme,
            lambda _step, _at: np.full(128, 0.5, np.float32),
            algorithm(local_lr=0.125, batch_size=0, local_steps=2, clip=100.0),
            tensors=tensors,
            x=np.ones(128),
        )
        assert outcome.delta_y[:] == pytest.approx(-0.125, abs=0.02)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [5, 193])
def test_a_gradient_that_is_not_finite_is_refused(scheme: str, bad: float, place: int) -> None:
    gradient = np.full(N, 0.5, np.float32)
    gradient[place] = bad
    int8 = scheme in INT8 and place < 192
    words = (
        "1 of .* int8 rows could not take step 0.*lower local_lr" if int8 else "no longer finite"
    )
    with pytest.raises(TrainingFailed, match=words):
        run(scheme, lambda _step, _at: gradient)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_gradient_that_is_not_finite_is_refused_when_clipped(scheme: str, clip: float) -> None:
    gradient = np.full(N, np.nan, np.float32)
    with pytest.raises(TrainingFailed, match="lower local_lr"):
        run(scheme, lambda _step, _at: gradient, FedAvg(batch_size=0, local_steps=2, clip=clip))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("growth", [1e1, 1e4, 1e18, 1e30])
def test_scales_that_explode_are_refused_not_sent(scheme: str, growth: float) -> None:
    """A gradient of -growth*y: after a few steps beyond 2^14, then beyond any scale, then inf."""
    algorithm = FedAvg(local_lr=1.0, batch_size=0, local_steps=12)
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(TrainingFailed) as failed:
        run(
            scheme,
            lambda _step, at: (at * np.float32(-growth)).astype(np.float32),
            algorithm,
            x=np.linspace(-1, 1, N),
        )
    assert "lower local_lr" in str(failed.value)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("codec", ["f32", "q8", "topk"])
@pytest.mark.parametrize("size", [2.0**-149, 2.0**-60, 2.0**-30, 2.0**10])
def test_small_and_large_moves_are_finite(scheme: str, codec: Any, size: float) -> None:
    outcome = run(
        scheme,
        lambda _step, _at: np.full(N, size, np.float32),
        Scaffold(local_lr=0.125, batch_size=0, local_steps=4),
        uplink=Uplink(delta_y=codec, delta_c="derived", share=0.5),
    )
    assert np.isfinite(outcome.delta_y[:]).all()
    assert outcome.delta_c is not None
    # The gradient, to the precision of int8: twice rounded, with a unit of 2^-40 at least.
    grain = 0.06 * size + 4 * 2**-40
    found = kernels.from_grid(outcome.delta_c[:])
    assert codec == "topk" or np.abs(found - size).max() < grain


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_control_beyond_the_grid_is_refused(scheme: str) -> None:
    """A gradient of 2^15 at a rate of 2^-10 moves y by 32 a step. That may be sent; c_i may not."""
    algorithm = Scaffold(local_lr=2.0**-10, batch_size=0, local_steps=2)
    with pytest.raises(TrainingFailed, match="out of range"):
        run(scheme, lambda _step, _at: np.full(N, 2.0**15, np.float32), algorithm)


@pytest.mark.parametrize("scheme", INT8)
def test_momentum_is_refused_on_int8_with_the_reason(scheme: str) -> None:
    algorithm = FedAvg(momentum=0.5, batch_size=0, local_steps=2)
    assert "no int8 step has one" in algorithm.int8_refusal
    with pytest.raises(UsageError, match="no int8 step has one"):
        run(scheme, lambda _step, _at: np.zeros(N, np.float32), algorithm)


def test_a_model_that_is_not_finite_is_refused() -> None:
    with pytest.raises(PlanError, match="cannot be held in int8"):
        run("w8.row/1", lambda _step, _at: np.zeros(N, np.float32), x=np.full(N, np.nan))


def test_partial_work_says_why_it_ended() -> None:
    reasons = iter(["", "it is 80 degrees"])
    outcome = run(
        "w8.row/1", lambda _step, _at: np.zeros(N, np.float32), stop=lambda: next(reasons)
    )
    assert (outcome.steps, outcome.stopped) == (2, "it is 80 degrees")
