"""The float64 trajectories of ``tests/data/golden_traces.npz``, followed in float32."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.server import State, simulate

TOLERANCE = 1e-5
ROUNDS = 8


@pytest.fixture(scope="module")
def traces() -> dict[str, Any]:
    with np.load(Path(__file__).parents[1] / "data" / "golden_traces.npz") as file:
        return dict(file)


def follow(traces: dict[str, Any], algorithm: FedAvg, rounds: int = ROUNDS) -> Any:
    assert float(traces["lr"]) == 0.1
    assert int(traces["K"]) == 5
    assert traces["sched"].tolist() == ["0,1", "2,3", "0,2", "1,3", "0,3", "1,2", "0,1,2,3", "2"]
    assert traces["sizes"].tolist() == [12, 20, 8, 16]
    clients = {str(i): (traces[f"X{i}"], traces[f"Y{i}"]) for i in range(4)}
    return simulate(
        softmax_regression(8, 3),
        clients,
        algorithm,
        rounds=rounds,
        cohort=lambda round_, _members: traces["sched"][round_ - 1].split(","),
        initial=State(x=np.concatenate([traces["W0"].ravel(), traces["b0"]])),
        keep_models=True,
        check="event",
    )


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("fedavg_weighted_x", FedAvg(local_lr=0.1, batch_size=0, local_steps=5)),
        (
            "fedavg_uniform_x",
            FedAvg(local_lr=0.1, batch_size=0, local_steps=5, weighting="uniform"),
        ),
        ("fedprox_mu1_weighted_x", FedProx(mu=1, local_lr=0.1, batch_size=0, local_steps=5)),
        ("scaffold2_x", Scaffold(local_lr=0.1, batch_size=0, local_steps=5)),
        ("scaffold2_x", Scaffold(local_lr=0.1, batch_size=0, local_steps=5, delta_c="f32")),
    ],
)
def test_the_model_follows(traces: dict[str, Any], name: str, algorithm: FedAvg) -> None:
    history = follow(traces, algorithm)
    assert np.shape(history.models) == (ROUNDS, 27)
    assert np.abs(history.models - traces[name]).max() < TOLERANCE
    # The trajectories differ by more than the tolerance: none can pass for another.
    others = {"fedavg_weighted_x", "fedavg_uniform_x", "fedprox_mu1_weighted_x", "scaffold2_x"}
    for other in others - {name}:
        assert np.abs(history.models - traces[other]).max() > 100 * TOLERANCE


@pytest.mark.parametrize("delta_c", ["derived", "f32"])
def test_the_controls_follow(traces: dict[str, Any], delta_c: Any) -> None:
    algorithm = Scaffold(local_lr=0.1, batch_size=0, local_steps=5, delta_c=delta_c)
    for round_ in range(1, ROUNDS + 1):
        history = follow(traces, algorithm, rounds=round_)
        c_i = np.stack([history.c_i[str(i)] for i in range(4)])
        assert np.abs(c_i - traces["scaffold2_ci"][round_ - 1]).max() < TOLERANCE
        assert np.abs(history.controls - traces["scaffold2_c"][:round_]).max() < TOLERANCE
        assert history.control_gap == 0
