"""What a simulated client has time for: partial work counts as it was run, none is dropped.

The loss is linear, so that a client's gradient is its row: 1, 3 and 5.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from algorithms.local import rows
from support.toy_plans import linear_loss

from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.errors import FleetError
from kellet.server.simulate import History, State, simulate

COMMON: dict[str, Any] = {"local_lr": 0.25, "batch_size": 0, "local_steps": 4}
MANAGED = {"a": 1, "b": 9, "c": 0}  # of four: one, all, none


def fleet(algorithm: FedAvg, managed: dict[str, int] = MANAGED, rounds: int = 1) -> History:
    return simulate(
        linear_loss(1),
        {name: rows([g]) for name, g in zip("abc", (1, 3, 5), strict=True)},
        algorithm,
        rounds=rounds,
        initial=State(x=np.zeros(1)),
        manages=lambda _round, client, _planned: managed[client],
        check="event",
    )


def test_one_step_counts_beside_four_and_who_has_none_is_dropped() -> None:
    """(-.25 * 1 * 1 - .25 * 4 * 3) / 2."""
    history = fleet(FedAvg(weighting="uniform", **COMMON))
    assert history.rounds[0].counted == ["a", "b"]
    assert history.model.tolist() == [-1.625]


def test_the_proximal_term_acts_in_the_steps_that_are_run() -> None:
    """mu = 1: b moves 3 * .25 a step and goes a quarter of the way back: .75 * (1, .., .75^3)."""
    history = fleet(FedProx(weighting="uniform", mu=1.0, **COMMON))
    b = 0.75 * (1 + 0.75 + 0.75**2 + 0.75**3)
    assert history.model.tolist() == [pytest.approx(-(0.25 + b) / 2, rel=1e-6)]


def test_controls_are_normalised_by_the_steps_that_were_run() -> None:
    """A constant gradient is what c_i comes to, in one step as in four; N is 3 all the same."""
    history = fleet(Scaffold(**COMMON))
    assert {name: c_i.tolist() for name, c_i in history.c_i.items()} == {
        "a": [1.0],
        "b": [3.0],
        "c": [0.0],
    }
    assert history.c.tolist() == [pytest.approx(4 / 3, rel=1e-6)]
    assert history.control_gap == 0


def test_who_dropped_a_round_is_asked_in_the_next() -> None:
    asked = [record.asked for record in fleet(FedAvg(**COMMON), rounds=3).rounds]
    assert asked == [["a", "b", "c"]] * 3


def test_a_round_in_which_nobody_has_time_is_refused() -> None:
    with pytest.raises(FleetError, match="it has time for no step"):
        fleet(FedAvg(**COMMON), dict.fromkeys("abc", 0))
