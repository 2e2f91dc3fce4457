"""The float64 trajectories of ``tests/data/golden_traces.npz``.

Devices train in float32, so a whole run follows them within float32's rounding. The server's
optimisers compute in float64: fed with float64 updates they follow to 1e-12.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.server import State, simulate
from kellet.server.algorithms import FedAdam, FedYogi
from kellet.server.optimizers import ServerOptimizer

TOLERANCE = 1e-5
ROUNDS = 8
LOCAL: dict[str, Any] = {"local_lr": 0.1, "batch_size": 0, "local_steps": 5}
OPTIMIZERS = {
    "fedopt_adam_x": FedAdam(server_lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3),
    "fedopt_yogi_x": FedYogi(server_lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3),
}


@pytest.fixture(scope="module")
def traces() -> dict[str, Any]:
    with np.load(Path(__file__).parents[1] / "data" / "golden_traces.npz") as file:
        return dict(file)


def follow(traces: dict[str, Any], algorithm: FedAvg, rounds: int = ROUNDS, **how: Any) -> Any:
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
        **how,
    )


def test_every_trajectory_has_a_test(traces: dict[str, Any]) -> None:
    data = {"sched", "lr", "K", "W0", "b0", "sizes", *(f"{a}{i}" for a in "XY" for i in range(4))}
    averaged = {"fedavg_weighted_x", "fedavg_uniform_x", "fedprox_mu1_weighted_x"}
    controlled = {"scaffold2_x", "scaffold2_c", "scaffold2_ci"}
    assert set(traces) == data | averaged | controlled | OPTIMIZERS.keys()


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("fedavg_weighted_x", FedAvg(**LOCAL)),
        ("fedavg_uniform_x", FedAvg(weighting="uniform", **LOCAL)),
        ("fedprox_mu1_weighted_x", FedProx(mu=1, **LOCAL)),
        ("scaffold2_x", Scaffold(**LOCAL)),
        ("scaffold2_x", Scaffold(delta_c="f32", **LOCAL)),
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
    algorithm = Scaffold(delta_c=delta_c, **LOCAL)
    for round_ in range(1, ROUNDS + 1):
        history = follow(traces, algorithm, rounds=round_)
        c_i = np.stack([history.c_i[str(i)] for i in range(4)])
        assert np.abs(c_i - traces["scaffold2_ci"][round_ - 1]).max() < TOLERANCE
        assert np.abs(history.controls - traces["scaffold2_c"][:round_]).max() < TOLERANCE
        assert history.control_gap == 0


def means(traces: dict[str, Any], optimizer: ServerOptimizer) -> Any:
    """All of it in float64, after each round: five local steps, their mean, the server's step."""
    x, moments = np.concatenate([traces["W0"].ravel(), traces["b0"]]), optimizer.start(27)
    models = []
    for names in traces["sched"]:
        deltas = [local(traces[f"X{i}"], traces[f"Y{i}"], x) - x for i in names.split(",")]
        x = x + optimizer.step(np.mean(deltas, axis=0), moments)
        models.append(x)
    return np.array(models)


def local(features: Any, labels: Any, x: Any) -> Any:
    """Five steps of gradient descent on the mean cross-entropy, at rate .1."""
    y, truth = x.copy(), np.eye(3)[labels]
    for _ in range(5):
        scores = features @ y[:24].reshape(3, 8).T + y[24:]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        error = (p / p.sum(axis=1, keepdims=True) - truth) / len(labels)
        y -= 0.1 * np.concatenate([(error.T @ features).ravel(), error.sum(axis=0)])
    return y


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_follows_in_float64(traces: dict[str, Any], name: str) -> None:
    optimizer = OPTIMIZERS[name]
    assert np.abs(means(traces, optimizer) - traces[name]).max() < 1e-12
    # One hyperparameter off, in one digit, and it would not.
    for other in ({"beta1": 0.8}, {"beta2": 0.98}, {"tau": 2e-3}, {"server_lr": 0.11}):
        off = dataclasses.replace(optimizer, **other)
        assert np.abs(means(traces, off) - traces[name]).max() > 1e-4


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fleet_with_an_optimizer_follows(traces: dict[str, Any], name: str) -> None:
    algorithm = FedAvg(weighting="uniform", **LOCAL)
    history = follow(traces, algorithm, server_optimizer=OPTIMIZERS[name])
    assert np.abs(history.models - traces[name]).max() < TOLERANCE
    for other in {"fedavg_uniform_x", *OPTIMIZERS} - {name}:
        assert np.abs(history.models - traces[other]).max() > 100 * TOLERANCE
