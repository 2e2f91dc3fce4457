"""What all sides train: a net, clients, and a first model, in a file that all can read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.evidence import data
from bench.evidence.plans import export
from bench.peers.environments import WHERE
from kellet.sdk.plan import Plan
from kellet.sdk.tasks import task

__all__ = ["PROBLEMS", "Setting", "Written", "write"]

Clients = list[tuple[NDArray[np.float32], NDArray[np.int64]]]

SEED = 7


@dataclass(frozen=True)
class Setting:
    """``clients``: makes them; ``cohort`` of them a round, ``steps`` of ``batch`` samples each."""

    title: str
    net: str
    clients: Callable[[], Clients]
    cohort: int = 10
    steps: int = 20
    batch: int = 16
    lr: float = 0.05


@dataclass(frozen=True)
class Written:
    """Where the sides find a problem."""

    setting: Setting
    clients: int
    data: Path
    plan: Path


def people() -> Clients:
    """WISDM's 36 people, each a client with all of its windows."""
    known = task("wisdm")
    return [known.load_user(user) for user in known.users]


def windows() -> Clients:
    """The same windows, dealt out to 100 clients."""
    pairs = people()
    return _dealt(np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs]))


def digits() -> Clients:
    """MNIST's 60,000 training images at 14 x 14, dealt out to 100 clients."""
    pool = data.pool("mnist")
    return _dealt(pool.x, pool.y)


def _dealt(x: NDArray[np.float32], y: NDArray[np.int64]) -> Clients:
    order = np.random.default_rng(SEED).permutation(len(y))
    return [(x[mine], y[mine]) for mine in np.array_split(order, 100)]


PROBLEMS = {
    "mlp_36": Setting("MLP 43-64-6, WISDM, 36 people", "mlp", people),
    "mlp_100": Setting("MLP 43-64-6, WISDM, 100 clients", "mlp", windows),
    "cnn_100": Setting("CNN, MNIST 14 x 14, 100 clients", "cnn", digits),
}


def write(name: str) -> Written:
    """Write a problem's files, with the plan of its net. Raises ``UsageError`` without torch."""
    setting = PROBLEMS[name]
    plan = WHERE / f"{setting.net}.kplan"
    export("bench.peers.export", setting.net, plan)
    opened = Plan.open(plan)
    clients = setting.clients()
    arrays: dict[str, Any] = {
        f"initial/{tensor}": value for tensor, value in opened.views(opened.initial()).items()
    }
    path = WHERE / f"{name}.npz"
    np.savez(
        path,
        x=np.concatenate([x for x, _ in clients]),
        y=np.concatenate([y for _, y in clients]),
        ends=np.cumsum([len(y) for _, y in clients]),
        **arrays,
    )
    return Written(setting, len(clients), path, plan)
