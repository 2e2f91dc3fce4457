"""How good a round's model is, as a whole and for each client, and how far FedProx lets it drift.

>>> leash(FedProx(local_lr=0.1, mu=0.5), "f32")
0.5
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, FedProx
from kellet.sdk.plan.evaluator import mean_cross_entropy
from kellet.server.metrics import curves, worst_decile

if TYPE_CHECKING:
    from kellet.sdk.plan import Plan
    from kellet.server.research.data import Population

__all__ = ["Gradients", "Judge", "Judged", "leash"]

F32 = NDArray[np.float32]
Arrays = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The server's model after a round. None: there is no such number.

    ``accuracy``, ``loss``, ``pr_auc`` and ``roc_auc`` are of the test set, the areas as
    `kellet.server.metrics.curves` takes them. ``client_accuracy`` is the mean over all
    clients of the accuracy on what each is judged by, every client alike; ``client_worst``
    that over the worst tenth of them (`worst_decile`).
    """

    accuracy: float | None = None
    loss: float | None = None
    pr_auc: float | None = None
    roc_auc: float | None = None
    client_accuracy: float | None = None
    client_worst: float | None = None


class Judge:
    """Judges models of one plan by one population."""

    def __init__(self, plan: Plan, population: Population) -> None:
        self._evaluator = plan.evaluator()
        manifest = plan.manifest
        self._cross_entropy = manifest.loss == "cross_entropy"
        self._classes = self._cross_entropy or manifest.labels.classes is not None
        self._test = population.test
        parts = list(population.judged.values())
        self._x, self._y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        self._starts = np.cumsum([0, *(len(y) for _, y in parts)])[:-1]

    def __call__(self, model: F32) -> Judged:
        """Judge ``model``, float32 [n_params]."""
        by_client: dict[str, float] = {}
        if self._classes:
            right = self._evaluator.scores(model, self._x).argmax(axis=1) == self._y
            sizes = np.diff([*self._starts, len(self._y)])
            accuracies = np.add.reduceat(right.astype(np.int64), self._starts) / sizes
            by_client = {
                "client_accuracy": float(accuracies.mean()),
                "client_worst": worst_decile(accuracies),
            }
        if self._test is None:
            return Judged(**by_client)
        x, y = self._test
        if not self._cross_entropy:
            metrics = self._evaluator.evaluate(model, x, y)
            return Judged(accuracy=metrics.accuracy, loss=_finite(metrics.loss), **by_client)
        scores = self._evaluator.scores(model, x)
        areas = curves(scores, y)
        with np.errstate(invalid="ignore", over="ignore"):  # a model that runs away has no loss
            loss = mean_cross_entropy(scores, y)
        return Judged(
            accuracy=float((scores.argmax(axis=1) == y).mean()),
            loss=_finite(loss),
            pr_auc=areas.pr_auc if areas else None,
            roc_auc=areas.roc_auc if areas else None,
            **by_client,
        )


def leash(algorithm: FedAvg, scheme: str) -> float | None:
    """mu, where FedProx's bound on drift, ||y - x|| <= G / mu, can be asked for; else None.

    An explicit step takes y - x to (1 - lr mu)(y - x) - lr g, an implicit one to
    (y - x - lr g)/(1 + lr mu). With lr mu <= 1, and in the implicit step always, neither
    leaves the ball of radius G / mu as long as no gradient's norm is above G. Momentum and
    the rounding of int8 weights are not in that argument.
    """
    if not isinstance(algorithm, FedProx) or not algorithm.penalised:
        return None
    if algorithm.momentum or scheme != "f32":
        return None
    if algorithm.local_lr * algorithm.mu > 1 and not algorithm.implicit:
        return None
    return algorithm.mu


class Gradients:
    """G: the largest norm of a gradient at a round's model, over the clients that were counted.

    Each client's samples are cut into batches of the size it trains on, in the order in which
    they are held, the short last one included. The gradient of each is what the local step
    would take at x: scaled down to ``clip`` where one is set, then with ``weight_decay`` times x.
    Local steps see other batches, at points away from x, so that their gradients may be larger:
    G / mu is then no proof, and a drift beyond it no fault.
    """

    def __init__(self, plan: Plan, clients: Mapping[str, Arrays], algorithm: FedAvg) -> None:
        self._session = plan.session()
        self._n_train = plan.n_train
        self._clients = clients
        self._algorithm = algorithm

    def largest(self, x: F32, counted: Collection[str]) -> float:
        """G at ``x``, float32 [n_params], over the clients ``counted``."""
        largest = 0.0
        trained = x[: self._n_train].astype(np.float64)
        for name in counted:
            features, labels = self._clients[name]
            size = self._algorithm.batch(len(labels))
            for start in range(0, len(labels), size):
                self._session.params[:] = x  # a step may move buffers
                some = slice(start, start + size)
                self._session.step(features[some], labels[some])
                largest = max(largest, self._norm(trained))
        return largest

    def _norm(self, trained: NDArray[np.float64]) -> float:
        gradient = self._session.grads[: self._n_train]
        norm = float(kernels.norm(gradient))
        clip, decay = self._algorithm.clip, self._algorithm.weight_decay
        scale = min(1.0, clip / norm) if clip and norm else 1.0
        if not decay:
            return scale * norm
        return float(np.linalg.norm(scale * gradient.astype(np.float64) + decay * trained))


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
