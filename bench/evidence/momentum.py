"""Momentum where few devices take part and controls are old."""

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
from kellet.sdk.algorithms import FedAvg, make
from kellet.server.partition import clients_of, similarity

__all__ = ["EXPERIMENT", "Cell"]

CLIENTS = 100
BATCH = 60  # of 600
EPOCHS = 2
TAIL = 10  # rounds whose mean is the figure
GOAL = 0.868  # at 2 % participation, with momentum
RATES = (0.1, 0.2, 0.5)
LOCAL = (0.01, 0.03)  # with local momentum, whose steps go ten times as far in the end
# Label, algorithm, its options, and the local rates that are tried.
WAYS: dict[str, tuple[str, str, dict[str, Any], tuple[float, ...]]] = {
    "fedavg": ("FedAvg", "fedavg", {}, RATES),
    "fedavg+local": ("FedAvg, local momentum .9", "fedavg", {"momentum": 0.9}, LOCAL),
    "scaffold": ("SCAFFOLD", "scaffold", {}, RATES),
    "scaffold+local": ("SCAFFOLD, local momentum .9", "scaffold", {"momentum": 0.9}, LOCAL),
    "scaffold_m": ("SCAFFOLD-M, beta .5", "scaffold_m", {"beta": 0.5}, RATES),
    "feddyn": ("FedDyn, alpha .1", "feddyn", {"alpha": 0.1}, RATES),
}
# Title, clients asked, rounds, schedule of the rate.
FLEETS: dict[str, tuple[str, int, int, str]] = {
    "10 %": ("10 % asked, 100 rounds", 10, 100, ""),
    "2 %": ("2 % asked, 150 rounds", 2, 150, ""),
    "2 %, falling": ("2 % asked, 150 rounds, rate by a cosine to 0", 2, 150, "cosine:150"),
}
REFERENCE = {
    ("10 %", "fedavg"): 0.795,
    ("10 %", "scaffold"): 0.873,
    ("10 %", "scaffold+local"): 0.914,
    ("2 %", "fedavg"): 0.716,
    ("2 %", "scaffold"): 0.868,
    ("2 %", "scaffold+local"): 0.587,
}
# Seeds 1 and 2 of these, with a falling rate, at the rate that was best in seed 0.
_SEEDED = {"fedavg+local": 0.01, "scaffold": 0.2, "scaffold+local": 0.01, "scaffold_m": 0.2}
_LEFT_OUT = {"10 %": (0.5, 0.01), "2 %": (0.5,), "2 %, falling": ()}


class Cell(experiment.Cell, frozen=True, kw_only=True):
    """One run."""

    plan: str = "mnist_mlp"
    way: str
    fleet: str
    local_lr: float
    seed: int = 0
    percent: int = 0
    epochs: int = EPOCHS
    batch: int = BATCH
    rounds: int = 0  # as the fleet's, unless given

    def __str__(self) -> str:
        return f"{WAYS[self.way][0]}, {self.fleet}, rate {self.local_lr:g}, seed {self.seed}"


def cells(full: bool) -> list[Cell]:
    """All ways, fleets and rates, and more seeds of some; in short, the worst case for momentum."""
    if not full:
        return [
            Cell(way=way, fleet="2 %", local_lr=rate, rounds=60)
            for way, rate in (("scaffold", 0.1), ("scaffold+local", 0.03), ("scaffold_m", 0.1))
        ]
    grid = [
        Cell(way=way, fleet=fleet, local_lr=rate)
        for fleet in reversed(FLEETS)
        for way in WAYS
        for rate in WAYS[way][3]
        if rate not in _LEFT_OUT[fleet]
    ]
    seeds = [
        Cell(way=way, fleet="2 %, falling", local_lr=rate, seed=seed)
        for way, rate in _SEEDED.items()
        for seed in (1, 2)
    ]
    falling = [cell for cell in grid if cell.fleet == "2 %, falling"]
    return falling + seeds + grid[len(falling) :]


def algorithm(cell: Cell) -> FedAvg:
    """All weigh clients alike, as SCAFFOLD must."""
    _, name, options, _ = WAYS[cell.way]
    return make(
        name,
        local_lr=cell.local_lr,
        local_epochs=cell.epochs,
        batch_size=cell.batch,
        weighting="uniform",
        **options,
    )


def work(cell: Cell) -> Found:
    """``tail``: the mean accuracy of the last rounds' models; ``best``: of any round's."""
    data = pool("mnist")
    _, cohort, rounds, schedule = FLEETS[cell.fleet]
    course = trained(
        opened(cell.plan),
        clients_of(similarity(data.y, CLIENTS, cell.percent, seed=cell.seed), data.x, data.y),
        algorithm(cell),
        rounds=cell.rounds or rounds,
        cohort=cohort,
        seed=cell.seed,
        schedule=schedule,
        test=data.test,
    )
    curve = course.accuracies
    return {
        "tail": fmean(curve[-TAIL:]),
        "best": max(curve),
        "last": curve[-1],
        "stopped": course.stopped,
        "curve": [round(accuracy, 4) for accuracy in curve],
    }


def best(results: Results[Cell], way: str, fleet: str, seed: int = 0) -> tuple[Cell, Found] | None:
    """Return the run at the better local rate, or None where none is there."""
    found = results.all(way=way, fleet=fleet, seed=seed)
    return max(found.items(), key=lambda item: item[1]["tail"], default=None)


def page(results: Results[Cell]) -> str:
    if set(results.found) == set(cells(False)):
        return table(*_short(results))
    return filled(
        "momentum",
        results,
        ways=table(*_ways(results)),
        local=_local(results),
        rates=_rates(results),
        server=_server(results),
        goal=_goal(results),
    )


def figure(results: Results[Cell], path: Path) -> None:
    """Accuracy by rounds of each way at its better rate, the mean of ten rounds."""
    with drawn(path, columns=len(FLEETS)) as axes:
        for panel, (fleet, (title, *_)) in zip(axes, FLEETS.items(), strict=True):
            for way in WAYS:
                run = best(results, way, fleet)
                if run:
                    curve = run[1]["curve"]
                    means = [fmean(curve[max(0, i - TAIL) : i]) for i in range(1, len(curve) + 1)]
                    panel.plot(range(1, len(curve) + 1), means, label=WAYS[way][0])
            panel.set(title=title, xlabel="rounds", ylim=(0, 1))
        axes[0].set(ylabel="accuracy, mean of the last ten rounds")
        longest = max(axes, key=lambda panel: len(panel.lines))
        longest.legend(fontsize=7)


def _words(run: tuple[Cell, Found] | None) -> str:
    if run is None:
        return "-"
    cell, found = run
    return f"{found['tail']:.3f} ({cell.local_lr:g}), best {found['best']:.3f}"


def _ways(results: Results[Cell]) -> tuple[list[str], list[list[str]]]:
    lines = []
    for way, (label, _, _, _) in WAYS.items():
        known = [
            f"{REFERENCE[f, way]:.3f}" if (f, way) in REFERENCE else "-" for f in ("10 %", "2 %")
        ]
        ours = [_words(best(results, way, fleet)) for fleet in FLEETS]
        lines.append([label, *ours, " / ".join(known)])
    return ["", *(fleet[0] for fleet in FLEETS.values()), "reference: 10 / 2 %"], lines


def _added(results: Results[Cell], way: str, other: str, fleet: str) -> str:
    """By how many points one way's figure is above the other's."""
    one, two = best(results, way, fleet), best(results, other, fleet)
    if one is None or two is None:
        return f"not measured ({fleet})"
    return f"{100 * (one[1]['tail'] - two[1]['tail']):+.1f} ({fleet})"


def _local(results: Results[Cell]) -> str:
    to_scaffold, to_fedavg = (
        ", ".join(_added(results, f"{way}+local", way, fleet) for fleet in FLEETS)
        for way in ("scaffold", "fedavg")
    )
    return f"to SCAFFOLD {to_scaffold}; to FedAvg {to_fedavg}."


def _rates(results: Results[Cell]) -> str:
    """What local momentum comes to under SCAFFOLD at each rate, where 2 % are asked."""
    words = []
    for fleet in ("2 %", "2 %, falling"):
        runs = results.all(way="scaffold+local", fleet=fleet, seed=0)
        tails = [f"{run['tail']:.3f} at {cell.local_lr:g}" for cell, run in runs.items()]
        words.append(f"{', '.join(tails) or 'not measured'} ({fleet})")
    return f"{'; '.join(words)}."


def _server(results: Results[Cell]) -> str:
    points = ", ".join(_added(results, "scaffold_m", "scaffold", fleet) for fleet in FLEETS)
    return f"{points}."


def _goal(results: Results[Cell]) -> str:
    """Whether momentum comes above the goal at 2 %, in every seed that was run."""
    words, above = [], []
    for way, rate in _SEEDED.items():
        runs = results.all(way=way, fleet="2 %, falling", local_lr=rate)
        tails = [run["tail"] for _, run in sorted(runs.items(), key=lambda item: item[0].seed)]
        words.append(f"{WAYS[way][0]} {', '.join(f'{tail:.3f}' for tail in tails)}")
        if way != "scaffold":
            above.append(f"{WAYS[way][0]} in {sum(t > GOAL for t in tails)} of {len(tails)} seeds")
    return f"{'; '.join(above)}. By seed: {'; '.join(words)}."


def _short(results: Results[Cell]) -> tuple[list[str], list[list[str]]]:
    return ["2 % asked, 60 rounds", "mean accuracy of the last ten"], [
        [WAYS[cell.way][0], f"{found['tail']:.3f} ({cell.local_lr:g})"]
        for cell, found in results.found.items()
    ]


EXPERIMENT = Experiment("momentum", "Momentum", Cell, cells, work, page, figure)
