"""What the demo runs: a task, hyperparameters that suit it, and how the fleet is shared out."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kellet.sdk.algorithms import FedAvg, make
from kellet.sdk.errors import UsageError

__all__ = ["COMPARED", "Recipe", "Settings", "as_options"]

COMPARED = ("fedavg", "fedprox", "scaffold")


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a task, the same for each algorithm; ``mu`` is FedProx's alone.

    ``deadline``: seconds that a round of a live fleet lasts at most.
    """

    rounds: int
    local_lr: float
    local_epochs: int
    batch_size: int
    mu: float
    deadline: float

    def algorithm(self, name: str) -> FedAvg:
        """All three weigh devices alike, as SCAFFOLD must: else the weights are compared too."""
        common: dict[str, Any] = {
            "local_lr": self.local_lr,
            "local_epochs": self.local_epochs,
            "batch_size": self.batch_size,
            "weighting": "uniform",
        }
        return make(name, **common, **({"mu": self.mu} if name == "fedprox" else {}))


RECIPES = {
    "wisdm": Recipe(rounds=30, local_lr=0.1, local_epochs=5, batch_size=32, mu=0.1, deadline=15.0),
    "har": Recipe(rounds=12, local_lr=0.05, local_epochs=1, batch_size=32, mu=0.1, deadline=60.0),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One demo. ``rounds`` None: the recipe's; ``state_dir`` None: inside the report's."""

    algorithm: str
    task: str
    rounds: int | None
    devices: int
    broker: str
    seed: int
    report: Path
    state_dir: Path | None
    data_dir: Path | None

    def __post_init__(self) -> None:
        for name in ("rounds", "devices"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**31:
                raise UsageError(f"{name} = {value}", why="it must be 1 to 2^31 - 1")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed = {self.seed}", why="it must be 0 to 2^63 - 1")

    @property
    def state(self) -> Path:
        """Where the processes keep what they must."""
        return self.report / "state" if self.state_dir is None else self.state_dir

    @property
    def recipe(self) -> Recipe:
        return RECIPES[self.task]

    @property
    def n_rounds(self) -> int:
        return self.recipe.rounds if self.rounds is None else self.rounds

    @property
    def target(self) -> int:
        """Six of eight: a round goes on without the two that may be down."""
        return math.ceil(0.75 * self.devices)

    @property
    def quorum(self) -> int:
        return math.ceil(self.target / 2)


def as_options(algorithm: FedAvg) -> list[str]:
    """The command-line options that make this algorithm."""
    options = ["--algorithm", algorithm.name]
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if value != field.default:
            options += [
                f"--{field.name.replace('_', '-')}",
                *([] if value is True else [str(value)]),
            ]
    return options
