"""The objective that a FedProx device reports: exact in short rounds, from 8 looks in long ones."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from algorithms.local import rows, run
from support.toy_plans import linear_loss

from kellet.sdk.algorithms import FedProx
from kellet.sdk.local_float import FloatLocal

LEASH = FedProx(mu=2, local_lr=0.125, batch_size=0)  # y - x: 0, -1, -1.75, -2.3125, ...


def terms(steps: int) -> list[float]:
    """(mu/2) (y - x)^2 before each step and after the last, with a gradient of 8."""
    away, found = 0.0, []
    for _ in range(steps + 1):
        found.append(away**2)
        away -= 0.125 * (8 + 2 * away)
    return found


def reported(steps: int, stop_after: int = 0) -> float:
    """The mean term that is in the objective."""
    done = [0]

    def stop() -> str:
        done[0] += 1
        return "enough" if done[0] == stop_after else ""

    algorithm = dataclasses.replace(LEASH, local_steps=steps)
    outcome = run(linear_loss(1), algorithm, [4.0], rows([8.0]), stop=stop)
    assert outcome.steps == (stop_after or steps)
    return float(outcome.objective - outcome.loss)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8])
def test_in_eight_steps_it_is_the_mean_over_all(steps: int) -> None:
    assert reported(steps) == pytest.approx(sum(terms(steps)[:steps]) / steps, rel=1e-6)


def test_in_more_it_is_linear_between_the_looks() -> None:
    """20 steps: looks before steps 3, 6, ... 18, and the end."""
    t = terms(20)
    nodes = [0, 3, 6, 9, 12, 15, 18, 20]
    between = [
        t[a] + (t[b] - t[a]) * k / (b - a)
        for a, b in itertools.pairwise(nodes)
        for k in range(b - a)
    ]
    assert len(between) == 20
    assert reported(20) == pytest.approx(sum(between) / 20, rel=1e-6)
    assert reported(20) == pytest.approx(sum(t[:20]) / 20, rel=0.01)  # which is what it is for


def test_partial_work_reports_what_was_done() -> None:
    """Stopped before the first look, and between two: the end is always one."""
    t = terms(20)
    assert reported(800, stop_after=2) == pytest.approx((t[0] + (t[0] + t[2]) / 2) / 2, rel=1e-6)
    # 8 looks in 16 steps: before 2, 4, ...
    wanted = [t[0], (t[0] + t[2]) / 2, t[2]]
    assert reported(16, stop_after=3) == pytest.approx(sum(wanted) / 3, rel=1e-6)


@pytest.mark.parametrize(("steps", "mu", "looks"), [(8, 2, 8), (9, 2, 5), (800, 2, 8), (800, 0, 1)])
def test_a_round_looks_eight_times_at_most(
    steps: int, mu: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drift at the end is one of them."""
    seen = []
    distance = FloatLocal.distance

    def counted(model: FloatLocal) -> float:
        seen.append(1)
        return distance(model)

    monkeypatch.setattr(FloatLocal, "distance", counted)
    algorithm = dataclasses.replace(LEASH, local_steps=steps, mu=mu)
    run(linear_loss(1), algorithm, [4.0], rows([8.0]))
    assert len(seen) == looks
