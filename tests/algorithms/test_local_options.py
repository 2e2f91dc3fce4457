"""Momentum, weight decay and clipping on a device, worked by hand; and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from algorithms.local import rows, run
from support.toy_plans import linear_loss

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold, from_wire
from kellet.sdk.errors import UsageError
from kellet.server import simulate

COMMON: dict[str, Any] = {"local_lr": 0.25, "batch_size": 0, "local_steps": 3}


def test_momentum_walks_and_counts_into_the_rate_sum() -> None:
    """g = 1, beta = .5: m = 1, 1.5, 1.75, so y = -.25*4.25; A = .25*(1 + 1.5 + 1.75)."""
    outcome = run(linear_loss(1), FedAvg(momentum=0.5, **COMMON), 0.0, rows([1]))
    assert outcome.delta_y[:].tolist() == [-1.0625]
    assert outcome.rate_sum == 1.0625


def test_momentum_with_controls_is_normalised() -> None:
    """A constant gradient of 3 is what c_i comes to, whatever beta: delta_c + c = 3."""
    algorithm = Scaffold(momentum=0.5, **COMMON)
    outcome = run(linear_loss(1), algorithm, 0.0, rows([3]), c=[0.5], c_i=[0.25])
    # The shift is .25: -1.0625 * 3.25.
    assert outcome.delta_y[:].tolist() == [-3.453125]
    assert outcome.delta_c is not None
    assert kernels.from_grid(outcome.delta_c[:]).tolist() == [2.75]  # c_i: .25 -> 3


def test_momentum_with_the_proximal_term() -> None:
    """mu = 1: m = 1, then .5 + (1 - .25), then .625 + (1 - .5625)."""
    outcome = run(linear_loss(1), FedProx(mu=1, momentum=0.5, **COMMON), 0.0, rows([1]))
    assert outcome.delta_y[:].tolist() == [-0.25 * (1 + 1.25 + 1.0625)]


def test_weight_decay_is_part_of_the_gradient() -> None:
    """decay .5 at y = 2: gradients 1 + 1, then 1 + .75 (at 1.5), then 1 + .53125 (at 1.0625)."""
    outcome = run(linear_loss(1), FedAvg(weight_decay=0.5, **COMMON), 2.0, rows([1]))
    assert outcome.delta_y[:].tolist() == [-0.25 * (2 + 1.75 + 1.53125)]
    controlled = run(linear_loss(1), Scaffold(weight_decay=0.5, **COMMON), 2.0, rows([1]))
    assert controlled.delta_c is not None  # so c_i comes to hold it
    mean = (2 + 1.75 + 1.53125) / 3
    assert kernels.from_grid(controlled.delta_c[:])[0] == pytest.approx(mean, abs=2**-48)


def test_clipping_comes_before_the_correction() -> None:
    """|(3, 4)| = 5, clipped to 2.5: (1.5, 2). Then the shift of (1, -1) is added, unclipped."""
    algorithm = Scaffold(clip=2.5, local_lr=0.25, batch_size=0, local_steps=1)
    outcome = run(linear_loss(2), algorithm, [0, 0], rows([3, 4]), c=[1, -1], c_i=[0, 0])
    assert outcome.delta_y[:].tolist() == [-0.25 * 2.5, -0.25 * 1]


def test_the_options_travel_with_the_announcement() -> None:
    algorithm = Scaffold(momentum=0.1, weight_decay=1e-4, clip=3.0, control_damping=0.1)
    wire = algorithm.wire()
    assert from_wire(wire) == algorithm
    assert wire["control_damping"] == np.float32(0.1)
    history = simulate(linear_loss(1), {"a": rows([1])}, Scaffold(momentum=0.5, **COMMON), rounds=1)
    assert history.model.tolist() == [-1.0625]
    assert history.c_i["a"].tolist() == [1]


def test_damping_moves_c_i_a_share_of_the_way() -> None:
    algorithm = Scaffold(control_damping=0.25, **COMMON)
    outcome = run(linear_loss(1), algorithm, 0.0, rows([3]), c=[0.5], c_i=[1.0])
    # Undamped c_i would come to 3: delta_c = 2, of which a quarter.
    assert outcome.delta_c is not None
    assert kernels.from_grid(outcome.delta_c[:]).tolist() == [0.5]


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        (FedAvg, {"momentum": 1.0}, "momentum = 1.0: it must be at least 0 and below 1"),
        (FedAvg, {"momentum": 1 - 2**-26}, "below 1"),  # in float32 it is 1
        (FedAvg, {"weight_decay": -1e-4}, "weight_decay"),
        (FedAvg, {"clip": -1.0}, "clip"),
        (FedProx, {"momentum": 0.5, "implicit": True}, "implicit proximal step with momentum"),
        (Scaffold, {"control_damping": 0.0}, "above 0 and at most 1"),
        (Scaffold, {"control_damping": 1.01}, "above 0 and at most 1"),
        (Scaffold, {"control_damping": 0.5, "option": "I"}, "under option I"),
        (Scaffold, {"delta_c": "zip"}, "derived, f32, q8 or topk"),
    ],
)
def test_what_is_refused(kind: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        kind(**options)
