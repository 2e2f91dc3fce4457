"""What is compared in ``scaffold_rounds``: the entries of its tables, and their settings."""

from __future__ import annotations

from typing import Any

from bench.evidence import experiment

__all__ = [
    "ALGORITHMS",
    "BATCH",
    "CLIENTS",
    "COHORTS",
    "EPOCHS",
    "MU",
    "PAIR",
    "PERCENTS",
    "SEEDS",
    "Cell",
    "cells",
]

CLIENTS = 100
BATCH = 120  # of 600: an epoch is five steps, as in the paper
MU = 1.0  # the paper's
EPOCHS = (1, 5, 10, 20)
PERCENTS = (0, 10, 100)
COHORTS = (20, 5, 1)
SEEDS = (0, 1, 2)
PAIR = ("scaffold", "fedavg")
ALGORITHMS = {"sgd": "SGD", "scaffold": "SCAFFOLD", "fedavg": "FedAvg", "fedprox": "FedProx"}


class Cell(experiment.Cell, frozen=True, kw_only=True):
    """One entry of a table: the fewest rounds over ``rates``, ``most`` at most.

    ``epochs`` of SGD is 0: one step a round over all samples of a client.
    """

    plan: str = "mnist_logistic"
    algorithm: str
    percent: int
    epochs: int
    cohort: int = 20
    target: float = 0.88
    seed: int = 0
    most: int = 150
    rates: tuple[float, ...]

    def __str__(self) -> str:
        return (
            f"{ALGORITHMS[self.algorithm]}, {self.percent} %, E {self.epochs}, "
            f"{self.cohort} of {CLIENTS}, seed {self.seed}"
        )


def rates(algorithm: str, epochs: int) -> tuple[float, ...]:
    """The local rates that an entry is tuned over.

    Each is tried no longer than the best before it took, so that the likeliest comes first.
    """
    if algorithm == "sgd":
        return (3.0, 1.0, 10.0)
    if algorithm == "fedprox":
        return (1.0,) if epochs < 10 else (0.3, 1.0)
    if epochs == 1:
        return (1.0, 0.3, 3.0)
    return (0.3, 1.0, 0.1)


def entry(algorithm: str, percent: int, epochs: int, **settings: Any) -> Cell:
    """An entry of the full tables."""
    return Cell(
        algorithm=algorithm,
        percent=percent,
        epochs=epochs,
        rates=rates(algorithm, epochs),
        **settings,
    )


def cells(full: bool) -> list[Cell]:
    """The tables' entries; in short, a setting of table 4 at a rate that is good for both."""
    if not full:
        return [
            Cell(algorithm=a, percent=0, epochs=5, target=0.8, most=40, rates=(1.0,)) for a in PAIR
        ]
    of_cohorts = [
        entry(a, 0, 5, target=0.8, cohort=c, seed=seed, most=400)
        for seed in SEEDS
        for c in COHORTS
        for a in PAIR
    ]
    of_seeds = [entry(a, 0, 5, seed=seed) for seed in SEEDS[1:] for a in PAIR]
    of_epochs = [
        entry(a, p, e)
        for a in ALGORITHMS
        for p in PERCENTS
        for e in ((0,) if a == "sgd" else EPOCHS)
    ]
    # What other figures are there for comes first, should a run be ended early.
    of_epochs.sort(key=lambda cell: (cell.epochs == 10, cell.algorithm == "fedprox"))
    return of_cohorts + of_seeds + of_epochs
