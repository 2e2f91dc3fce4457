"""What a selection does to a run: a table of the rounds that ``kellet simulate --out`` kept.

::

    kellet simulate --task wisdm --sweep selection=uniform,similar seeds=8 ... --out DIR
    python -m bench.selection DIR
    python -m bench.selection --noise       # how much of it is left under noise
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kellet.sdk import tasks
from kellet.sdk.histogram import noised, to_shares
from kellet.server.partition import by_label
from kellet.server.selection import Candidate, Draw, Fleet, Similar, Told, Uniform

__all__ = ["Row", "labels_in_a_round", "main", "rows", "table"]

Row = dict[str, Any]
_COLUMNS = {
    "algorithm": "algorithm",
    "selection": "selection",
    "runs": "runs",
    "first": "first third",
    "second": "second half",
    "lowest": "its lowest round",
    "jump": "from a round to the next",
    "worst": "worst tenth",
    "evenness": "evenness",
}


def rows(rounds: Iterable[Mapping[str, Any]]) -> list[Row]:
    """One row for each algorithm and selection, of the rows of ``rounds.jsonl``.

    Means over the runs of: the test accuracy's mean over the first third of the rounds
    (``first``) and over their second half (``second``); within that half its lowest value and the
    mean of what it changes from a round to the next, up or down; the accuracy of the worst tenth of
    the clients; and, of the last round, how evenly clients were asked.
    """
    runs: dict[tuple[str, str], dict[int, dict[int, Mapping[str, Any]]]] = defaultdict(dict)
    for each in rounds:
        said = each["settings"]
        key = said["algorithm"], said["selection"]
        runs[key].setdefault(said["seed"], {})[each["round"]] = each
    return [
        {"algorithm": algorithm, "selection": selection, "runs": len(seeds)}
        | _means([_measures(list(dict(sorted(run.items())).values())) for run in seeds.values()])
        for (algorithm, selection), seeds in sorted(runs.items(), reverse=True)
    ]


def _measures(run: list[Mapping[str, Any]]) -> dict[str, float]:
    accuracy = [each["accuracy"] for each in run]
    third, half = len(run) // 3, len(run) // 2
    late = accuracy[half:]
    jumps = [abs(b - a) for a, b in zip(accuracy[half - 1 :], late, strict=False)]
    return {
        "first": statistics.mean(accuracy[:third]),
        "second": statistics.mean(late),
        "lowest": min(late),
        "jump": statistics.mean(jumps),
        "worst": statistics.mean(each["client_worst"] for each in run[half:]),
        "evenness": run[-1]["evenness"],
    }


def _means(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.mean(run[name] for run in runs) for name in runs[0]}


def table(found: list[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| " + " | ".join(_COLUMNS.values()) + " |", "|" + "---|" * len(_COLUMNS)]
    for row in found:
        cells = (row[name] for name in _COLUMNS)
        shown = (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells)
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def labels_in_a_round(selection: Draw, epsilon: float | None, repeats: int = 5) -> float:
    """How many of WISDM's 6 labels the clients of a round have among them, in the mean.

    36 clients of one label each, by ``partition.by_label`` with the seed 0; 100 rounds after
    each of ``repeats`` draws of the noise.
    """
    known = tasks.task("wisdm", None)
    people = tasks.split(known, 8, 0).devices.values()
    y = np.concatenate([known.load(users)[1] for users in people])
    shared = {f"c{i:02}": y[part] for i, part in enumerate(by_label(y, 36, 1, seed=0))}
    counts = {name: np.bincount(mine, minlength=6).tolist() for name, mine in shared.items()}
    seen = []
    for repeat in range(repeats):
        below = random.Random(repeat).randrange
        told = {
            name: Told(
                to_shares(c if epsilon is None else noised(c, 1, epsilon, below), (6,)), (6,)
            )
            for name, c in counts.items()
        }
        turn = dict.fromkeys(told, 0)
        for round_ in range(1, 101):
            known_now = {n: Candidate(n, turn=turn[n], told=told[n]) for n in told}
            fleet = Fleet(sorted(told), known_now.__getitem__)
            asked = selection.pick(1000 * repeat + round_, fleet, selection.size)
            turn |= dict.fromkeys(asked, round_)
            seen.append(len({int(shared[name][0]) for name in asked}))
    return statistics.mean(seen)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="what simulate --out was given")
    parser.add_argument("--noise", action="store_true", help="what noise leaves of it")
    given = parser.parse_args()
    if given.noise or given.folder is None:
        print(f"uniform: {labels_in_a_round(Uniform(6), None):.2f} labels in a round")
        for epsilon in (None, 1.0, 0.1, 0.03, 0.01):
            print(f"similar, epsilon {epsilon}: {labels_in_a_round(Similar(6), epsilon):.2f}")
        return
    with open(given.folder / "rounds.jsonl", encoding="utf-8") as file:
        print(table(rows(map(json.loads, file))))


if __name__ == "__main__":
    main()
