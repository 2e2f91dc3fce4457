"""One device's round on a plan's real gradients, as a driver runs it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kellet import kernels
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.plan import Plan
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.trainer import Data, Outcome, train

__all__ = ["control", "rows", "run", "skewed"]


def control(values: ArrayLike) -> Any:
    """A control variate on the grid, int64."""
    return kernels.to_grid(np.atleast_1d(np.asarray(values, np.float64)))


def rows(*features: ArrayLike) -> tuple[Any, Any]:
    """A client's data: these rows, and labels that the toy plans ignore."""
    x = np.array(features, np.float32)
    return x, np.zeros(len(x), np.int64)


def skewed(samples: Mapping[str, int], seed: int = 0) -> dict[str, tuple[Any, Any]]:
    """Clients with that many samples of three classes in four dimensions, each with a bias."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((3, 4)) * 3
    clients = {}
    for index, (name, count) in enumerate(samples.items()):
        y = np.where(rng.random(count) < 0.7, index % 3, rng.integers(0, 3, count))
        clients[name] = (centres[y] + rng.standard_normal((count, 4)), y)
    return clients


def run(
    plan: Plan,
    algorithm: FedAvg,
    x: ArrayLike,
    data: tuple[ArrayLike, ArrayLike],
    *,
    c: ArrayLike | None = None,
    c_i: ArrayLike | None = None,
    **options: Any,
) -> Outcome:
    """Train from the model ``x``; the controls are given as plain numbers."""
    if algorithm.controls:
        c = np.zeros(plan.n_train) if c is None else c
        c_i = np.zeros(plan.n_train) if c_i is None else c_i
    return train(
        plan.session(),
        algorithm,
        Data(*plan.check_data(*data)),
        x=np.atleast_1d(np.asarray(x, np.float32)),
        shapes=Shapes.of(plan.manifest.tensors),
        c=None if c is None else np.atleast_1d(np.asarray(c, np.float32)),
        c_i=None if c_i is None else control(c_i),
        **{"seed": 0, "device": "a", "round_": 1} | options,
    )
