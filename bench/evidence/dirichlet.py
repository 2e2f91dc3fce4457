"""Frauds and thyroids shared out ever more unequally: FedAvg, FedProx and SCAFFOLD in ten rounds.

A cell is one training. Two more answer what the data would give if one machine had them all.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.evidence import experiment
from bench.evidence.detection import SKEWED_BY, detection
from bench.evidence.dirichlet_page import ALPHAS, SKEWS, TASKS, figure, page
from bench.evidence.experiment import Experiment, Found
from bench.evidence.fleet import opened
from bench.evidence.newton import logistic_regression
from bench.evidence.steepest import MeasuredFedProx, measured
from kellet.sdk.algorithms import FedAvg, make
from kellet.server.metrics import average_precision, roc_auc
from kellet.server.partition import Clients, clients_of, dirichlet, feature_skew
from kellet.server.simulate import simulate

__all__ = ["EXPERIMENT", "Cell", "algorithm", "clients_for"]

SEEDS = (0, 1, 2)
LEAST = 50  # samples a client


class Cell(experiment.Cell, frozen=True, kw_only=True):
    """``skew``: label, feature, or none: one client has everything. ``algorithm``: or newton."""

    data: str
    model: str
    skew: str = "none"
    alpha: float = 0.0
    algorithm: str = "fedavg"
    mu: float = 0.0
    clients: int = 10
    rounds: int = 10
    local_steps: int = 100
    batch_size: int = 64
    local_lr: float = 0.1
    seed: int = 0

    def __str__(self) -> str:
        mu = f" mu {self.mu:g}" if self.algorithm == "fedprox" else ""
        return (
            f"{self.data} {self.model}, {self.skew} skew {self.alpha:g}, {self.algorithm}{mu}, "
            f"seed {self.seed}"
        )


def cells(full: bool) -> list[Cell]:
    """All; in short, a logistic regression under label skew, alpha 0.1, one seed."""
    found = _of_seed("logistic", 0, full)
    if full:  # an early end leaves whole tables of fewer seeds
        found += _of_seed("mlp", 0, full)
        found += [cell for seed in SEEDS[1:] for cell in _of_seed("logistic", seed, full)]
        found += [cell for seed in SEEDS[1:] for cell in _of_seed("mlp", seed, full)]
    return found


def _of_seed(model: str, seed: int, full: bool) -> list[Cell]:
    found = []
    for data in TASKS:
        common: dict[str, Any] = {"data": data, "model": model, "seed": seed}
        if model == "logistic" and seed == 0:
            found.append(Cell(algorithm="newton", clients=1, **common))
        plan = f"{data}_{model}"
        found.append(Cell(plan=plan, clients=1, **common))
        found += [
            Cell(plan=plan, skew=skew, alpha=alpha, algorithm=name, mu=mu, **common)
            for skew in (SKEWS if full else SKEWS[:1])
            for alpha in (ALPHAS if full else ALPHAS[:1])
            for name, mu in _algorithms(first=seed == 0)
        ]
    return found


def _algorithms(*, first: bool) -> list[tuple[str, float]]:
    """Names and mu. FedProx with mu 0 is FedAvg, bit for bit: one seed shows that."""
    mus = (0.0, 0.01, 2.0, 50.0) if first else (0.01, 2.0, 50.0)
    return [("fedavg", 0.0), *(("fedprox", mu) for mu in mus), ("scaffold", 0.0)]


def algorithm(cell: Cell) -> FedAvg:
    """Return the cell's. All weigh clients alike, as SCAFFOLD must."""
    common: dict[str, Any] = {
        "local_lr": cell.local_lr,
        "local_steps": cell.local_steps,
        "batch_size": cell.batch_size,
        "weighting": "uniform",
    }
    if cell.algorithm == "fedprox":
        # From 2 upwards the explicit step diverges, and above 1 it steps past the model.
        implicit = cell.local_lr * cell.mu > 1
        return MeasuredFedProx(mu=cell.mu, implicit=implicit, **common)
    return make(cell.algorithm, **common)


def clients_for(cell: Cell) -> Clients:
    """Share the data out."""
    data = detection(cell.data)
    if cell.skew == "none":
        return {"all": (data.x, data.y)}
    if cell.skew == "label":
        parts = dirichlet(data.y, cell.clients, cell.alpha, seed=cell.seed, least=LEAST)
    else:
        column, _ = SKEWED_BY[cell.data]
        parts = feature_skew(
            data.x[:, column], cell.clients, cell.alpha, seed=cell.seed, least=LEAST
        )
    return clients_of(parts, data.x, data.y)


def work(cell: Cell) -> Found:
    """Train, and judge the last model."""
    data = detection(cell.data)
    if cell.algorithm == "newton":
        return _judged(logistic_regression(data.x, data.y).scores(data.test[0]), data.test[1])
    plan = opened(cell.plan)
    clients = clients_for(cell)
    with measured() as steepest:
        history = simulate(
            plan,
            clients,
            algorithm(cell),
            rounds=cell.rounds,
            seed=cell.seed,
            test=data.test,
        )
    rounds = history.rounds
    scores = plan.evaluator().scores(history.model, data.test[0]).astype(np.float64)
    sizes = sorted(len(y) for _, y in clients.values())
    positives = sorted(int(y.sum()) for _, y in clients.values())
    return _judged(scores[:, 1] - scores[:, 0], data.test[1]) | {
        "losses": [round(r.loss or 0.0, 6) for r in rounds],
        "megabytes": (rounds[-1].uplink_bytes + rounds[-1].downlink_bytes) / 1e6,
        "drift": float(np.mean([r.drift for r in rounds])),
        "drift_max": max(r.drift_max or 0.0 for r in rounds),
        "steepest": steepest.norm,
        "samples": sizes,
        "positives": positives,
        "control_gap": history.control_gap,
        "digest": history.digest,
    }


def _judged(scores: NDArray[np.float64], y: NDArray[Any]) -> Found:
    """``scores``: log odds. The loss is that of the probabilities they stand for."""
    signed = np.where(y == 1, -scores, scores)
    return {
        "pr_auc": average_precision(scores, y),
        "roc_auc": roc_auc(scores, y),
        "loss": float(np.logaddexp(0, signed).mean()),
    }


EXPERIMENT = Experiment(
    "dirichlet",
    "Dirichlet's sweep on frauds and thyroids",
    Cell,
    cells,
    work,
    page,
    figure,
)
