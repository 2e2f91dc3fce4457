"""What is compared: tasks, algorithms, schemes and seeds, and the settings of each task."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from kellet.sdk.algorithms import FedAvg, make
from kellet.sdk.plan import Plan

__all__ = [
    "ALGORITHMS",
    "FULL",
    "NEAREST",
    "QUICK",
    "SCHEMES",
    "SEEDS",
    "Cell",
    "Setting",
    "algorithm",
    "cells_of",
    "fingerprint",
]

NEAREST = "nearest"
DAMPING = 0.1
SEEDS = (0, 1, 2)

ALGORITHMS = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "scaffold": "SCAFFOLD",
    "damped": f"SCAFFOLD, damping {DAMPING:g}",
}
# Families as profiles name them; the last is w8.row with nearest rounding, the control.
SCHEMES = ("f32", "w8.row", "w8.block64", "w8.row+a8", NEAREST)


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a task is trained; each cell of the task alike.

    The pool is shared out by ``partition.dirichlet`` with ``alpha`` and ``least``; every client
    takes part in each of ``rounds``. Accuracy is the mean over the last ``tail`` models.
    """

    rounds: int
    tail: int
    local_lr: float
    local_steps: int = 20
    batch_size: int = 32
    mu: float = 0.1
    clients: int = 10
    alpha: float = 0.1
    least: int = 20


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run."""

    task: str
    algorithm: str
    scheme: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}, {ALGORITHMS[self.algorithm]}, {self.scheme}, seed {self.seed}"


FULL: Mapping[str, Setting] = {
    "wisdm": Setting(rounds=150, tail=20, local_lr=0.05),
    "har": Setting(rounds=60, tail=20, local_lr=0.05),
    "mnist": Setting(rounds=50, tail=10, local_lr=0.1),
}
# The rate is low, for there nearest rounding shows what it does within few rounds.
QUICK: Mapping[str, Setting] = {"wisdm": Setting(rounds=40, tail=5, local_lr=0.02)}


def algorithm(name: str, setting: Setting) -> FedAvg:
    """Return the algorithm of a cell. All weigh clients alike, as SCAFFOLD must."""
    common = {
        "local_lr": setting.local_lr,
        "local_steps": setting.local_steps,
        "batch_size": setting.batch_size,
        "weighting": "uniform",
    }
    match name:
        case "fedprox":
            return make("fedprox", mu=setting.mu, **common)
        case "damped":
            return make("scaffold", control_damping=DAMPING, **common)
    return make(name, **common)


def cells_of(task: str, plan: Plan, seeds: Iterable[int]) -> list[Cell]:
    """Return a task's cells, the seeds one after the other. Only schemes that the plan has."""
    has = {scheme.partition("/")[0] for scheme in plan.schemes}
    schemes = [s for s in SCHEMES if s in has or (s == NEAREST and "w8.row" in has)]
    return [Cell(task, a, s, seed) for seed in seeds for a in ALGORITHMS for s in schemes]


def fingerprint(setting: Setting, plan: Plan) -> str:
    """Return what tells a kept cell from one of another setting or plan, 16 hex digits."""
    return hashlib.sha256(msgspec.json.encode(setting) + plan.id).hexdigest()[:16]
