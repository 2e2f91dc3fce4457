"""SCAFFOLD with error feedback as fleets run it: delta_c must not follow what arrives late."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.server import History, simulate

D, C = 6, 3
PLAN = softmax_regression(D, C)


def clients() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Four that disagree: each has two of the three classes, around centres of its own."""
    rng = np.random.default_rng(5)
    made = {}
    for i in range(4):
        y = np.array([i % C, (i + 1) % C] * 8)
        x = rng.normal(size=(16, D)) + rng.normal(size=(C, D))[y] * 2
        made[f"c{i}"] = (x.astype(np.float32), y)
    return made


def run(
    algorithm: FedAvg, uplink: Literal["f32", "topk"], *, feedback: bool = False
) -> tuple[History, float]:
    """The run, and ||gradient of the mean loss|| at its end."""
    data = clients()
    history = simulate(
        PLAN, data, algorithm, rounds=150, uplink=uplink, share=0.15, feedback=feedback
    )
    session = PLAN.session()
    session.params[:] = history.model
    total = np.zeros(PLAN.n_train)
    for x, y in data.values():
        session.step(x, y)
        total += session.grads[: PLAN.n_train]
    return history, float(np.linalg.norm(total / len(data)))


@pytest.mark.parametrize("delta_c", ["f32", "q8"])
def test_an_explicit_delta_c_with_feedback_converges_as_without(
    delta_c: Literal["f32", "q8"],
) -> None:
    """The largest sixth arrives. Had delta_c been made of what arrives, c_i would run away."""
    how = {"local_lr": 0.2, "batch_size": 0, "local_steps": 5}
    exact, wanted = run(Scaffold(**how), "f32")  # type: ignore[arg-type]
    fed, reached = run(Scaffold(**how, delta_c=delta_c), "topk", feedback=True)  # type: ignore[arg-type]
    assert fed.control_gap == 0
    assert reached < 2 * wanted + 0.01
    largest = max(np.abs(c).max() for c in exact.c_i.values())
    assert max(np.abs(c).max() for c in fed.c_i.values()) < 2 * largest
