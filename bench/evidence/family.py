"""Every averaging rule on the FedProx paper's synthetic data, under the same steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from bench.evidence import experiment
from bench.evidence.experiment import Experiment, Found, Results
from bench.evidence.fleet import opened
from bench.evidence.pages import COLOURS, drawn, filled
from bench.evidence.synthetic import Devices, synthetic, together
from bench.markdown import table
from kellet.sdk.algorithms import FedAvg, make
from kellet.server.history import History
from kellet.server.optimizers import make as make_optimizer
from kellet.server.simulate import simulate

__all__ = ["EXPERIMENT", "WAYS", "Cell"]

SEEDS = (0, 1, 2)
RATES = (0.03, 0.1, 0.2)  # tried on seed 0
TOGETHER = "one client with everything"
WEIGHED = {"name": "scaffold", "weighting": "samples"}


class Way(NamedTuple):
    """An algorithm and its settings, the best of `RATES` for it, and what was published."""

    settings: dict[str, Any]
    local_lr: float
    published: str = ""
    optimizer: dict[str, Any] | None = None


WAYS = {
    "FedAvg": Way({"name": "fedavg"}, 0.03, ".889"),
    "FedAvg, uniform": Way({"name": "fedavg", "weighting": "uniform"}, 0.03),
    "FedProx, mu .01": Way({"name": "fedprox", "mu": 0.01}, 0.03, ".895"),
    "FedProx, mu 1": Way({"name": "fedprox", "mu": 1.0}, 0.1),
    "FedAdam": Way({"name": "fedavg"}, 0.03, optimizer={"name": "adam", "server_lr": 0.03}),
    "SCAFFOLD, uniform": Way({"name": "scaffold"}, 0.2, ".945"),
    "SCAFFOLD-M, uniform": Way({"name": "scaffold_m", "beta": 0.5}, 0.1),
    "FedDyn, uniform, alpha .01": Way({"name": "feddyn", "alpha": 0.01}, 0.2, ".956"),
    "FedDyn, uniform, alpha .1": Way({"name": "feddyn", "alpha": 0.1}, 0.1),
    "SCAFFOLD": Way(WEIGHED, 0.2),
    "SCAFFOLD-M": Way({**WEIGHED, "name": "scaffold_m", "beta": 0.5}, 0.2),
    "SCAFFOLD with Adam": Way(WEIGHED, 0.03, optimizer={"name": "adam", "server_lr": 0.03}),
    TOGETHER: Way({"name": "fedavg"}, 0.2),
}
ROUNDS, LONG = 100, 1000
GOAL = 0.956
LONGER = {TOGETHER: 0.2, "SCAFFOLD": 0.1}
PERSONAL = "finetune:500,local_lr=0.1"


class Cell(experiment.Cell, frozen=True, kw_only=True):
    """``way``: of `WAYS`. ``asked`` of 30 devices; with 0 one client has everybody's samples."""

    plan: str = "synthetic_logistic"
    way: str
    local_lr: float
    personal: str = ""
    asked: int = 10
    rounds: int = ROUNDS
    local_steps: int = 70
    batch_size: int = 50
    seed: int = 0

    def __str__(self) -> str:
        tuned = ", tuned" if self.personal else ""
        rate = f"rate {self.local_lr:g}"
        return f"{self.way}{tuned}, {rate}, {self.rounds} rounds, seed {self.seed}"


def cells(full: bool) -> list[Cell]:
    """All; in short, FedAvg and SCAFFOLD for fewer rounds."""
    if not full:
        return [_cell(way, WAYS[way].local_lr, rounds=30) for way in ("FedAvg", "SCAFFOLD")]
    tried = [_cell(way, rate) for rate in RATES for way in WAYS]
    tuned = [_cell("SCAFFOLD", 0.1, personal=PERSONAL, seed=seed) for seed in SEEDS]
    seeds = [_cell(way, WAYS[way].local_lr, seed=seed) for seed in SEEDS[1:] for way in WAYS]
    long = [_cell(way, rate, rounds=LONG, seed=s) for way, rate in LONGER.items() for s in SEEDS]
    return [*tried, *seeds, *tuned, *long]


def _cell(way: str, rate: float, **more: Any) -> Cell:
    return Cell(way=way, local_lr=rate, asked=0 if way == TOGETHER else 10, **more)


def algorithm(cell: Cell) -> FedAvg:
    return make(
        **WAYS[cell.way].settings,
        local_lr=cell.local_lr,
        local_steps=cell.local_steps,
        batch_size=cell.batch_size,
    )


def work(cell: Cell) -> Found:
    """Train; accuracy is that of the devices' tests together, each sample counted once."""
    devices, test = synthetic()
    optimizer = WAYS[cell.way].optimizer
    history = simulate(
        opened(cell.plan),
        devices if cell.asked else {"all": together(devices)},
        algorithm(cell),
        server_optimizer=make_optimizer(**optimizer) if optimizer else None,
        rounds=cell.rounds,
        cohort=cell.asked or None,
        seed=cell.seed,
        test=together(test),
        personal=cell.personal or None,
        holdout=test if cell.personal else 0.0,
    )
    accuracies = [record.accuracy or 0.0 for record in history.rounds]
    return _personal(history, test) | {
        "accuracy": accuracies[-1],
        "last_tenth": fmean(accuracies[-max(1, cell.rounds // 10) :]),
        "best": max(accuracies),
        "to_09": next((i for i, a in enumerate(accuracies, 1) if a >= 0.9), None),
        "loss": history.loss,
        "accuracies": [round(accuracy, 4) for accuracy in accuracies],
        "digest": history.digest,
    }


def _personal(history: History, test: Devices) -> Found:
    """Return the accuracy of devices' own models on their own tests, where they have some."""
    right = {
        name: len(test[name][1]) * own.personal_accuracy
        for name, own in history.clients.items()
        if own.personal_accuracy is not None
    }
    samples = sum(len(test[name][1]) for name in right)
    return {"personal": sum(right.values()) / samples, "have_own": len(right)} if right else {}


def page(results: Results[Cell]) -> str:
    """Return docs/evidence/family.md."""
    head = ["", "rate", "at the end", "last tenth", "best", "rounds to .9", "published"]
    rates = [f"{rate:g}" for rate in RATES]
    return filled(
        "family",
        results,
        table=table(head, _rows(results)),
        tried=table(["last tenth, seed 0, at the rate", *rates], _tried(results)),
        personal=_tuned(results),
        goal=_goal(results),
    )


def _rated(results: Results[Cell]) -> Iterator[tuple[str, float, str, list[Found]]]:
    """Name, rate and published figure of each line, and what came of its seeds."""
    rounds = min(cell.rounds for cell in results.found)
    for way, of in WAYS.items():
        found = results.all(way=way, local_lr=of.local_lr, personal="", rounds=rounds)
        yield way, of.local_lr, of.published, list(found.values())
    for way, rate in LONGER.items():
        found = results.all(way=way, local_lr=rate, rounds=LONG)
        yield f"{way}, {LONG:,} rounds", rate, "", list(found.values())


def _rows(results: Results[Cell]) -> Iterator[list[str]]:
    for words, rate, published, found in _rated(results):
        if found:
            ends = [f["accuracy"] for f in found]
            reached = [f["to_09"] for f in found if f["to_09"]]
            yield [
                words,
                f"{rate:g}",
                f"{fmean(ends):.3f} ({min(ends):.3f} to {max(ends):.3f})",
                f"{fmean(f['last_tenth'] for f in found):.3f}",
                f"{max(f['best'] for f in found):.3f}",
                f"{fmean(reached):.0f}" if len(reached) == len(found) else "-",
                published,
            ]


def _tried(results: Results[Cell]) -> Iterator[list[str]]:
    for way in WAYS:
        found = [
            results.one(way=way, local_lr=rate, seed=0, personal="", rounds=ROUNDS)
            for rate in RATES
        ]
        if any(found):
            yield [way, *(f"{f['last_tenth']:.3f}" if f else "-" for f in found)]


def _goal(results: Results[Cell]) -> str:
    """Say which lines come to .956: at their end, over their last rounds, or in single ones."""
    lines = [(words, found) for words, _, _, found in _rated(results) if found]
    ways: dict[str, Callable[[list[Found]], float]] = {
        "at the last round": lambda found: fmean(f["accuracy"] for f in found),
        "over the last tenth of the rounds": lambda found: fmean(f["last_tenth"] for f in found),
        "in single rounds": lambda found: max(f["best"] for f in found),
    }
    told = []
    for when, figure_of in ways.items():
        reached = [words for words, found in lines if figure_of(found) >= GOAL]
        told.append(f"{when} by {' and '.join(reached) or 'none'}")
    return "; ".join(told) + "."


def _tuned(results: Results[Cell]) -> str:
    found = list(results.all(personal=PERSONAL).values())
    if not found:
        return "Not run in the short form."
    own = [f["personal"] for f in found]
    ends = [f["accuracy"] for f in found]
    return (
        f"{fmean(own):.3f} ({min(own):.3f} to {max(own):.3f}) against {fmean(ends):.3f} of the "
        f"model that all share, over {len(found)} seeds"
    )


def figure(results: Results[Cell], path: Path) -> None:
    """Accuracy by rounds, each method at its rate, the mean of the seeds."""
    with drawn(path, height=4.4) as (axes,):
        for place, (way, of) in enumerate(WAYS.items()):
            found = results.all(way=way, local_lr=of.local_lr, personal="", rounds=ROUNDS)
            if found:
                mean = np.mean([f["accuracies"] for f in found.values()], axis=0)
                style = ":" if way == TOGETHER else "-" if place < len(COLOURS) else "--"
                axes.plot(range(1, len(mean) + 1), mean, style, label=way)
        axes.set(ylim=(0.6, 0.97), xlabel="rounds", ylabel="accuracy on the devices' tests")
        axes.legend(fontsize=7, loc="lower right")


EXPERIMENT = Experiment("family", "The family", Cell, cells, work, page, figure)
