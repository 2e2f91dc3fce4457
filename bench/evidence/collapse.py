"""Whether any algorithm falls apart where few of many clients take part."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from bench.evidence import experiment
from bench.evidence.data import pool
from bench.evidence.experiment import Experiment, Found, Results
from bench.evidence.fleet import opened, trained
from bench.evidence.pages import drawn, filled
from bench.markdown import table
from kellet.sdk.algorithms import make
from kellet.server import optimizers
from kellet.server.partition import clients_of, dirichlet

__all__ = ["EXPERIMENT", "MARGIN", "Cell", "fall"]

CLIENTS = 100
COHORT = 10
SPAN = 10  # rounds that are averaged: a single round of ten clients says little
MARGIN = 0.02  # a mean that far below an earlier one counts as a collapse
# Label, algorithm and its options; server optimiser and its rate.
WAYS: dict[str, tuple[str, str, dict[str, Any], str, float]] = {
    "fedavg": ("FedAvg", "fedavg", {}, "", 1.0),
    "fedavg+local": ("FedAvg, local momentum .9", "fedavg", {"momentum": 0.9}, "", 1.0),
    "fedprox": ("FedProx, mu .1", "fedprox", {"mu": 0.1}, "", 1.0),
    "scaffold": ("SCAFFOLD", "scaffold", {}, "", 1.0),
    "scaffold1": ("SCAFFOLD, option I", "scaffold", {"option": "I"}, "", 1.0),
    "scaffold+local": ("SCAFFOLD, local momentum .9", "scaffold", {"momentum": 0.9}, "", 1.0),
    "scaffold_m": ("SCAFFOLD-M, beta .5", "scaffold_m", {"beta": 0.5}, "", 1.0),
    "feddyn": ("FedDyn, alpha .1", "feddyn", {"alpha": 0.1}, "", 1.0),
    "fednova": ("FedNova", "fednova", {}, "", 1.0),
    "avgm": ("FedAvg, FedAvgM .9", "fedavg", {}, "avgm", 0.3),
    "adagrad": ("FedAvg, Adagrad", "fedavg", {}, "adagrad", 0.1),
    "adam": ("FedAvg, Adam", "fedavg", {}, "adam", 0.03),
    "yogi": ("FedAvg, Yogi", "fedavg", {}, "yogi", 0.03),
    "scaffold-avgm": ("SCAFFOLD, FedAvgM .9", "scaffold", {}, "avgm", 0.3),
}
_SHORT = ("fedavg", "scaffold", "scaffold_m", "feddyn", "adam")


class Cell(experiment.Cell, frozen=True, kw_only=True):
    """One run: Dirichlet(``alpha``) by label, ``local_steps`` of ``batch``."""

    plan: str = "mnist_logistic"
    way: str
    local_lr: float
    options: tuple[tuple[str, float | str], ...]
    optimizer: str
    server_lr: float
    rounds: int
    alpha: float = 0.1
    local_steps: int = 10
    batch: int = 32
    seed: int = 0

    def __str__(self) -> str:
        return f"{WAYS[self.way][0]}, rate {self.local_lr:g}, {self.rounds} rounds"


def cells(full: bool) -> list[Cell]:
    return [
        Cell(
            way=way,
            local_lr=0.01 if "momentum" in options else 0.1,
            options=tuple(options.items()),
            optimizer=optimizer,
            server_lr=server_lr,
            rounds=150 if full else 40,
        )
        for way, (_, _, options, optimizer, server_lr) in WAYS.items()
        if full or way in _SHORT
    ]


def fall(curve: list[float]) -> float:
    """Return by how much the mean of ``SPAN`` rounds ever fell below that of an earlier span."""
    means = [fmean(curve[i : i + SPAN]) for i in range(len(curve) - SPAN + 1)]
    highest, worst = 0.0, 0.0
    for mean in means:
        highest = max(highest, mean)
        worst = max(worst, highest - mean)
    return worst


def work(cell: Cell) -> Found:
    """``fall``: see there; ``tail``: mean accuracy of the last rounds."""
    data = pool("mnist")
    parts = dirichlet(data.y, CLIENTS, cell.alpha, seed=cell.seed, least=20)
    course = trained(
        opened(cell.plan),
        clients_of(parts, data.x, data.y),
        make(
            WAYS[cell.way][1],
            local_lr=cell.local_lr,
            local_steps=cell.local_steps,
            batch_size=cell.batch,
            weighting="uniform",
            **dict(cell.options),
        ),
        server_optimizer=optimizers.make(cell.optimizer, server_lr=cell.server_lr)
        if cell.optimizer
        else None,
        rounds=cell.rounds,
        cohort=COHORT,
        seed=cell.seed,
        test=data.test,
    )
    curve = course.accuracies
    return {
        "fall": fall(curve),
        "tail": fmean(curve[-SPAN:]),
        "best": max(curve),
        "rounds": len(curve),
        "stopped": course.stopped,
        "curve": [round(accuracy, 4) for accuracy in curve],
    }


def page(results: Results[Cell]) -> str:
    lines = [
        [
            WAYS[cell.way][0],
            f"{cell.local_lr:g}",
            f"{cell.server_lr:g}",
            f"{found['tail']:.3f}",
            f"{found['best']:.3f}",
            f"{found['fall']:.3f}" if not found["stopped"] else f"ended: {found['stopped']}",
            _verdict(cell, found),
        ]
        for cell, found in results.found.items()
    ]
    head = ["", "local rate", "server rate", "last ten", "best round", "largest fall", "verdict"]
    runs = table(head, lines)
    if set(results.found) == set(cells(False)):
        return runs
    verdicts = [_verdict(cell, found) for cell, found in results.found.items()]
    return filled(
        "collapse",
        results,
        runs=runs,
        margin=f"{MARGIN:g}",
        verdict=f"{verdicts.count('steady')} of {len(verdicts)} are steady, "
        f"{verdicts.count('dips')} dip, {verdicts.count('collapses')} collapse.",
    )


def _verdict(cell: Cell, found: Found) -> str:
    """A run that comes back to its highest mean has dipped; one that does not has collapsed."""
    if found["stopped"] or found["rounds"] < cell.rounds:
        return "collapses"
    if found["fall"] <= MARGIN:
        return "steady"
    curve = found["curve"]
    highest = max(fmean(curve[i : i + SPAN]) for i in range(len(curve) - SPAN + 1))
    return "dips" if fmean(curve[-SPAN:]) >= highest - MARGIN else "collapses"


def figure(results: Results[Cell], path: Path) -> None:
    """Accuracy by rounds, as a mean of ten."""
    titles = ("averaging", "controls", "server optimisers")
    with drawn(path, columns=len(titles)) as axes:
        for cell, found in results.found.items():
            curve, kind = found["curve"], WAYS[cell.way][1]
            place = 2 if cell.optimizer else int(kind.startswith(("scaffold", "feddyn")))
            means = [fmean(curve[max(0, i - SPAN) : i]) for i in range(1, len(curve) + 1)]
            axes[place].plot(range(1, len(curve) + 1), means, label=WAYS[cell.way][0])
        for panel, title in zip(axes, titles, strict=True):
            panel.set(title=title, xlabel="rounds", ylim=(0, 1))
            panel.legend(fontsize=7)
        axes[0].set(ylabel="accuracy, mean of ten rounds")


EXPERIMENT = Experiment("collapse", "Collapse", Cell, cells, work, page, figure)
