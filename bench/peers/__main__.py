"""Kellet's simulation beside flwr's and pfl's: same data, model, steps and seeds, one run.

    python -m bench.peers [--full]

First every side trains all clients for one round, two steps on all of their samples, from the
same model; unless the three models agree to 1e-5, nothing is timed. Then the sides run by turns.
``--full`` writes docs/evidence/peers.json, .md and .svg. Each peer gets an environment of its own
under build/peers, some 2 GB in all, which is made by the first run.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median

import numpy as np

from bench.peers import figure, page
from bench.peers.measure import SIDES, Ran, run
from bench.peers.problems import PROBLEMS, Written, write
from bench.peers.results import Compared, Results, Timed, facts, spread, versions
from bench.peers.results import write as write_results
from kellet.sdk.errors import FleetError, KelletError

AGREE = 1e-5
WHERE = Path(__file__).parents[2] / "docs" / "evidence"

# Rounds of one run, by net and framework: some seconds to half a minute each.
ROUNDS = {
    "mlp": {"kellet": 150, "pfl": 150, "flwr": 15},
    "cnn": {"kellet": 25, "pfl": 25, "flwr": 10},
}
QUICK = {"mlp": {"kellet": 30, "pfl": 30, "flwr": 5}, "cnn": {"kellet": 6, "pfl": 6, "flwr": 4}}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--full", action="store_true", help="three runs each, and the page")
    parser.add_argument("--only", choices=sorted(PROBLEMS), action="append", help="a problem")
    given = parser.parse_args()
    if given.full and given.only:
        parser.error("--full is of all problems")
    repeats = 3 if given.full else 1
    began = os.getloadavg()[0]
    compared = {
        name: compare(write(name), repeats, ROUNDS if given.full else QUICK)
        for name in given.only or PROBLEMS
    }
    where, day = facts()
    load = (round(began, 2), round(os.getloadavg()[0], 2))
    results = Results(day, given.full, repeats, load, where, versions(), compared)
    print(page.tables(results))
    if given.full:
        write_results(results, WHERE / "peers.json")
        (WHERE / "peers.md").write_text(page.page(results), encoding="utf-8")
        figure.draw(results, WHERE / "peers.svg")


def compare(problem: Written, repeats: int, rounds: dict[str, dict[str, int]]) -> Compared:
    """Validate, then let the sides run by turns. ``FleetError`` where their models differ."""
    setting = problem.setting
    apart = validate(problem)
    sides = {name: side for name, side in SIDES.items() if setting.net in side.nets}
    runs: dict[str, list[Ran]] = {name: [] for name in sides}
    for turn in range(repeats):
        for name, side in sides.items():
            _say(f"{setting.title}: {name}, run {turn + 1} of {repeats}")
            number = rounds[setting.net][side.framework]
            runs[name].append(run(name, problem, rounds=number, seed=turn))
    return Compared(
        setting.title, setting.net, apart, {name: _timed(found) for name, found in runs.items()}
    )


def validate(problem: Written) -> dict[str, float]:
    """How far the other sides' models are from Kellet's after a round of all clients."""
    ours = run("kellet", problem, rounds=1, whole=True).model
    found = {}
    for name in ("kellet, 2 processes", "pfl", "flwr"):
        _say(f"{problem.setting.title}: validating {name}")
        theirs = run(name, problem, rounds=1, whole=True).model
        if set(theirs) != set(ours):
            raise FleetError(f"{name} has trained other tensors: {sorted(theirs)}")
        found[name] = max(float(np.abs(ours[t] - theirs[t]).max()) for t in ours)
        if not found[name] <= AGREE:
            raise FleetError(
                f"after one round {name}'s model is {found[name]:.2g} from Kellet's",
                why="the two do not compute the same thing, so their times mean nothing",
            )
    return found


def _timed(runs: list[Ran]) -> Timed:
    # The second round may still pay for what the first began.
    return Timed(
        seconds=spread([float(np.median(np.diff(one.ends[1:]))) for one in runs]),
        first=spread([one.ends[0] for one in runs]),
        rss=int(median(one.rss for one in runs)),
        pss=int(median(one.pss for one in runs)),
        rounds=len(runs[0].ends),
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except KelletError as error:
        sys.exit(f"bench.peers: {error}")
