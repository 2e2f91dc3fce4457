"""Rounds to an accuracy, after tables 3 and 4 of the SCAFFOLD paper (arXiv 1910.06378)."""

from __future__ import annotations

from typing import Any

from bench.evidence.data import pool
from bench.evidence.experiment import Experiment, Found
from bench.evidence.fleet import opened, trained
from bench.evidence.scaffold_grid import BATCH, CLIENTS, MU, Cell, cells
from bench.evidence.scaffold_page import figure, page
from kellet.sdk.algorithms import FedAvg, make
from kellet.server.partition import clients_of, similarity

__all__ = ["EXPERIMENT", "Cell"]


def algorithm(cell: Cell, rate: float) -> FedAvg:
    """All weigh clients alike, as SCAFFOLD must."""
    options: dict[str, Any] = {"local_lr": rate, "weighting": "uniform"}
    if cell.algorithm == "sgd":
        return make("fedavg", local_steps=1, batch_size=0, **options)
    if cell.algorithm == "fedprox":
        options["mu"] = MU
    return make(cell.algorithm, local_epochs=cell.epochs, batch_size=BATCH, **options)


def work(cell: Cell) -> Found:
    """Try the rates. ``rounds`` is None where none came to the target within ``most``."""
    data, plan = pool("mnist"), opened(cell.plan)
    parts = similarity(data.y, CLIENTS, cell.percent, seed=cell.seed)
    clients = clients_of(parts, data.x, data.y)
    tried: dict[str, int | None] = {}
    best, at, curve = None, cell.rates[0], [0.0]
    for rate in cell.rates:
        course = trained(
            plan,
            clients,
            algorithm(cell, rate),
            rounds=best - 1 if best else cell.most,
            cohort=cell.cohort,
            seed=cell.seed,
            test=data.test,
            enough=cell.target,
        )
        tried[f"{rate:g}"] = rounds = course.rounds_to(cell.target)
        nearest = best is None and max(course.accuracies) > max(curve)
        if rounds or nearest:
            best, at, curve = rounds or best, rate, course.accuracies
        if best == 1:
            break
    return {
        "rounds": best,
        "rate": at,
        "accuracy": max(curve),
        "tried": tried,
        "curve": [round(accuracy, 4) for accuracy in curve],
    }


EXPERIMENT = Experiment("scaffold_rounds", "Rounds to an accuracy", Cell, cells, work, page, figure)
