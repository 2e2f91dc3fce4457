"""The page and the figure of ``scaffold_rounds``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.evidence.experiment import Found, Results
from bench.evidence.pages import drawn, filled
from bench.evidence.scaffold_grid import (
    ALGORITHMS,
    COHORTS,
    EPOCHS,
    PAIR,
    PERCENTS,
    SEEDS,
    Cell,
    cells,
)
from bench.markdown import table

__all__ = ["figure", "page"]

GOAL = 2.5  # times fewer rounds, at 0 % similarity
# By algorithm and epochs: rounds at the similarities of PERCENTS, as far as they are known.
BEFORE = {
    ("sgd", 0): (53,),
    ("scaffold", 1): (26, 24),
    ("scaffold", 5): (22, 14),
    ("scaffold", 20): (27, 6),
    ("fedavg", 1): (62, 46),
    ("fedavg", 5): (72, 19),
    ("fedavg", 20): (72, 6),
}
PAPER = {
    ("sgd", 0): (317, 365, 416),
    ("scaffold", 1): (77, 62, 60),
    ("scaffold", 5): (152, 20, 10),
    ("scaffold", 10): (286, 16, 7),
    ("scaffold", 20): (266, 11, 4),
    ("fedavg", 1): (258, 74, 83),
    ("fedavg", 5): (428, 34, 10),
    ("fedavg", 10): (711, 25, 6),
    ("fedavg", 20): ("1000+", 18, 4),
    ("fedprox", 1): ("1000+", 979, 459),
    ("fedprox", 20): ("1000+", 916, 351),
}
BEFORE_COHORTS = {"scaffold": (11, 27, 84), "fedavg": (25, 46, 180)}


def page(results: Results[Cell]) -> str:
    """Return the page; of the short run, its one table."""
    if set(results.found) == set(cells(False)):
        return table(*_short(results))
    return filled(
        "scaffold_rounds",
        results,
        epochs=table(*_epochs(results)),
        ratios=table(*_ratios(results)),
        goal=_goal(results),
        cohorts=table(*_cohorts(results)),
        seeds=_seeds(results),
    )


def figure(results: Results[Cell], path: Path) -> None:
    """Rounds by epochs at each similarity, and by participation."""
    with drawn(path, columns=len(PERCENTS) + 1) as axes:
        for panel, percent in zip(axes, PERCENTS, strict=False):
            for name, label in ALGORITHMS.items():
                epochs = (0,) if name == "sgd" else EPOCHS
                found = [(e, _entry(results, name, percent, e)) for e in epochs]
                points = [(e, _drawn_at(*f)) for e, f in found if f]
                if name == "sgd":
                    for _, rounds in points:
                        panel.axhline(rounds, color="black", lw=1, ls=":", label=label)
                elif points:
                    panel.plot(*zip(*points, strict=True), marker="o", ms=4, label=label)
            panel.set(yscale="log", title=f"{percent} % similarity", xlabel="E, epochs a round")
            panel.set_xticks(EPOCHS)
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("{x:g}")
            panel.tick_params(axis="y", which="minor", labelsize=6)
        axes[0].set(ylabel="rounds to .88 (150: not within them)")
        axes[0].legend(fontsize=7)
        last = axes[-1]
        for name in PAIR:
            by_cohort = [_of_cohort(results, name, c) for c in COHORTS]
            line = last.plot(COHORTS, [median(r) for r in by_cohort], label=ALGORITHMS[name])
            for cohort, each in zip(COHORTS, by_cohort, strict=True):
                last.plot([cohort] * len(each), each, "o", ms=3, color=line[0].get_color())
        last.set(xscale="log", yscale="log", title="0 %, E 5, to .80", xlabel="% of clients asked")
        last.set_xticks(COHORTS, [str(c) for c in COHORTS])
        last.yaxis.set_major_formatter("{x:g}")
        last.legend(fontsize=7)


def _entry(
    results: Results[Cell], algorithm: str, percent: int, epochs: int, seed: int = 0
) -> tuple[Cell, Found] | None:
    """An entry of the first table, or None where it was not worked yet."""
    found = results.all(
        algorithm=algorithm, percent=percent, epochs=epochs, seed=seed, cohort=20, target=0.88
    )
    return next(iter(found.items()), None)


def _drawn_at(cell: Cell, found: Found) -> int:
    return int(found["rounds"] or cell.most)


def _words(entry: tuple[Cell, Found] | None) -> str:
    if entry is None:
        return "-"
    cell, found = entry
    rounds = found["rounds"]
    return f"{rounds} ({found['rate']:g})" if rounds else f"> {cell.most}"


def _known(figures: Sequence[object]) -> str:
    return " / ".join(map(str, figures)) or "-"


def _epochs(results: Results[Cell]) -> tuple[list[str], list[list[str]]]:
    lines = []
    for name, label in ALGORITHMS.items():
        for epochs in (0,) if name == "sgd" else EPOCHS:
            lines.append(
                [
                    label,
                    str(epochs or "-"),
                    *(_words(_entry(results, name, p, epochs)) for p in PERCENTS),
                    _known(BEFORE.get((name, epochs), ())),
                    _known(PAPER.get((name, epochs), ())),
                ]
            )
    similar = [f"{p} %" for p in PERCENTS]
    head = ["", "E", *similar, "before: 0 / 10 %", "paper: 0 / 10 / 100 %"]
    return head, lines


def _ratio(results: Results[Cell], percent: int, epochs: int, seed: int = 0) -> tuple[float, str]:
    """How many times SCAFFOLD's rounds FedAvg took, as a number and in words."""
    mine = _entry(results, "scaffold", percent, epochs, seed)
    theirs = _entry(results, "fedavg", percent, epochs, seed)
    if mine is None or theirs is None or mine[1]["rounds"] is None:
        return float("nan"), "-"
    ratio = _drawn_at(*theirs) / mine[1]["rounds"]
    return ratio, f"{'' if theirs[1]['rounds'] else '> '}{ratio:.1f}"


def _ratios(results: Results[Cell]) -> tuple[list[str], list[list[str]]]:
    lines = [
        [
            str(epochs),
            *(_ratio(results, percent, epochs)[1] for percent in PERCENTS),
            _known(_divided(BEFORE, epochs)),
            _known(_divided(PAPER, epochs)),
        ]
        for epochs in EPOCHS
    ]
    similar = [f"{p} %" for p in PERCENTS]
    return ["E", *similar, "before: 0 / 10 %", "paper: 0 / 10 / 100 %"], lines


def _divided(known: dict[Any, Any], epochs: int) -> list[str]:
    pairs = zip(known.get(("fedavg", epochs), ()), known.get(("scaffold", epochs), ()), strict=True)
    return [
        f"> {int(a.rstrip('+')) / b:.1f}" if isinstance(a, str) else f"{a / b:.1f}"
        for a, b in pairs
    ]


def _goal(results: Results[Cell]) -> str:
    """Whether SCAFFOLD needs ``GOAL`` times fewer rounds at 0 %, by what was found."""
    ratios = {e: _ratio(results, 0, e)[0] for e in EPOCHS}
    reached = [f"{e}" for e, ratio in ratios.items() if ratio >= GOAL]
    missed = [f"{e}" for e, ratio in ratios.items() if ratio < GOAL]
    words = f"**Goal: {GOAL:g} times fewer rounds than FedAvg at 0 % similarity.** "
    if reached:
        words += f"Reached at E = {', '.join(reached)}. "
    if missed:
        words += f"Missed at E = {', '.join(missed)}. "
    others = ", ".join(_ratio(results, 0, 5, seed)[1] for seed in SEEDS)
    return words + f"At E = 5 three seeds give {others}."


def _of_cohort(results: Results[Cell], algorithm: str, cohort: int) -> list[int]:
    found = results.all(algorithm=algorithm, cohort=cohort, target=0.8, epochs=5)
    return sorted(_drawn_at(cell, f) for cell, f in found.items())


def _cohorts(results: Results[Cell]) -> tuple[list[str], list[list[str]]]:
    lines = []
    for name in PAIR:
        rounds = [_of_cohort(results, name, c) for c in COHORTS]
        ours = [f"{median(r):g} ({', '.join(map(str, r))})" for r in rounds]
        lines.append([ALGORITHMS[name], *ours, _known(BEFORE_COHORTS[name])])
    medians = [[median(_of_cohort(results, name, c)) for name in PAIR] for c in COHORTS]
    before = zip(*BEFORE_COHORTS.values(), strict=True)
    lines.append(
        [
            "ratio of medians",
            *(f"{theirs / mine:.1f}" for mine, theirs in medians),
            _known([f"{theirs / mine:.1f}" for mine, theirs in before]),
        ]
    )
    return ["asked a round", *(f"{c} %" for c in COHORTS), "before: 20 / 5 / 1 %"], lines


def _seeds(results: Results[Cell]) -> str:
    """Every seed of the one setting of the first table that has three."""
    words = []
    for name in PAIR:
        rounds = [_words(_entry(results, name, 0, 5, seed)) for seed in SEEDS]
        words.append(f"{ALGORITHMS[name]} {', '.join(rounds)}")
    return f"To .88 at 20 %, E = 5, 0 %, by seed: {'; '.join(words)}."


def _short(results: Results[Cell]) -> tuple[list[str], list[list[str]]]:
    return ["E = 5, 0 %, 20 of 100", "rounds to .80 (rate)", "before"], [
        [ALGORITHMS[cell.algorithm], _words((cell, found)), str(BEFORE_COHORTS[cell.algorithm][0])]
        for cell, found in results.found.items()
    ]
