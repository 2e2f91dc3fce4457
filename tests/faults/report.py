"""docs/reliability.md, out of what was tried: ``python -m tests.faults.report``.

``--run NAME=TIMES ...`` tries something first and writes it down in results.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE.parent)]  # as pytest has it

from faults import crashes, crowd, mutations, storms  # noqa: E402
from faults import rows as processes  # noqa: E402
from faults.planted import PLANTED  # noqa: E402
from faults.power.files import in_memory  # noqa: E402
from faults.power.fleets import FLEETS, cut_fleet, record  # noqa: E402
from faults.power.promises import cut_work  # noqa: E402
from faults.power.work import work  # noqa: E402

from kellet.sdk.health import peak_mb  # noqa: E402

__all__ = ["RESULTS", "page"]

RESULTS = _HERE / "results.json"
PAGE = _HERE.parents[1] / "docs" / "reliability.md"

PROCESSES = (
    "KELLET_RECORD_ROWS=1 pytest tests/faults/processes tests/processes -m 'slow or not slow'"
)

Row = dict[str, Any]  # fault, times, outcome, figure


def _storms(times: int) -> list[Row]:
    tally: Counter[str] = Counter()
    broken: list[int] = []
    for seed in range(times):
        done = storms.run(seed)
        tally.update(done.tally)
        tally.update(events=done.events, checks=done.checks, counted=done.counted)
        if done.broken:
            broken.append(seed)
    outcome = "every promise held after every event" if not broken else f"broken: seeds {broken}"
    figure = (
        f"{tally.pop('events'):,} events, {tally.pop('checks'):,} replays of a ledger, "
        f"{tally.pop('counted'):,} updates counted, gap 0"
    )
    rows = [_row("fleets in a storm drawn from a seed", times, outcome, figure)]
    rows += [_row(f"— {what}", count, "as above", "") for what, count in sorted(tally.items())]
    return rows


def _crashes(times: int) -> list[Row]:
    rows = []
    for role, found in crashes.points().items():
        tried = died = 0
        broken: list[str] = []
        for point, passed in sorted(found.items()):
            for seed in range(times):
                death = crashes.Death(role, point, 1 + seed % max(1, passed // 2), seed)
                text, deaths = crashes.die(death)
                tried, died = tried + 1, died + (deaths > 0)
                broken += [f"{death}: {text}"] if text else []
        who = "the aggregator" if role == "server" else "a device"
        outcome = "resumed, nothing lost" if not broken else f"broken: {broken[:3]}"
        rows.append(
            _row(f"{who} killed at a named point", died, outcome, f"{len(found)} points x {times}")
        )
    return rows


def _mutations(times: int) -> list[Row]:
    delivered: Counter[str] = Counter()
    counted = seed = 0
    broken: list[str] = []
    while delivered.total() < times:
        done = mutations.run(seed, min(500, times))
        delivered.update(done.delivered)
        counted, seed = counted + done.counted, seed + 1
        broken += [f"seed {seed - 1}: {done.broken}"] if done.broken else []
    return [mutation_row(delivered, counted, broken)]


def mutation_row(delivered: Counter[str], counted: int, broken: list[str]) -> Row:
    """What became of changed messages."""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(delivered.items()))
    outcome = "0 counted twice, gap 0, no exception" if not broken else f"broken: {broken[:3]}"
    figure = f"{kinds}; {counted:,} updates counted meanwhile"
    return _row("messages changed on their way", delivered.total(), outcome, figure)


def _dropouts(_times: int) -> list[Row]:
    rows = []
    for share in (0.3, 0.5, 0.7, 0.9):
        seconds, counted = crowd.close_without(share, deadline=60.0)
        figure = f"closed after {seconds:g} s of a deadline of 60"
        rows.append(_row(f"{share:.0%} of a cohort of 20 gone", 1, f"{counted} counted", figure))
    return rows


def _rush(times: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        done = crowd.rush(times, n=4000, admission=1 << 20, folder=Path(folder))
    figure = (
        f"at most {done.most_bytes_granted / 1024:,.0f} KB granted of {16 * times / 1024:,.0f} MB;"
        f" peak of allocated memory {done.peak_kb:,.0f} KB; {done.busy:,} told to wait"
    )
    outcome = f"{done.counted:,} counted"
    return [_row("devices that upload in one moment", times, outcome, figure)]


def _devices(times: int) -> list[Row]:
    done = crowd.simulated(times)
    same = len(set(done.digests)) == 1 and done.exact and done.counted == [times] * 2
    outcome = "all counted, twice to the same digest" if same else f"broken: {done.digests}"
    slowest = max(done.seconds)
    figure = (
        f"{done.digests[0][:16]}; {slowest:,.0f} s a run, peak of the process {peak_mb():,.0f} MB"
    )
    return [_row("simulated devices in one round", times, outcome, figure)]


def _rounds(times: int) -> list[Row]:
    held = crowd.memory_by_round(times, every=10)
    figure = f"{100 * crowd.growth(held):.0f} bytes a round (median slope of all pairs of samples)"
    return [_row("rounds one after the other", times, "memory flat", figure)]


def _planted(_times: int) -> list[Row]:
    rows = []
    for name, bug in PLANTED.items():
        events = 0
        for seed in range(50):
            done = storms.run(seed, plant=bug.plant, algorithm=bug.algorithm)
            events += done.at_event or done.events
            if done.broken:
                break
        outcome = f"found by the check “{done.broken}”" if done.broken else "not found"
        rows.append(_row(f"planted: {name}", seed + 1, outcome, f"after {events:,} events"))
    return rows


def _power(times: int) -> list[Row]:
    with in_memory() as folder:
        history = work(folder / "disks", seed=1, rounds=60)
        done = cut_work(history, folder / "after", count=times, seed=2)
        receipts = f"{len(history.receipts)} updates receipted in 60 rounds of two devices"
        rows = [_cuts("databases of devices and aggregator", times, done.wrong, receipts)]
        for name, options in FLEETS.items():
            recorded = record(folder / name, **options)
            done = cut_fleet(recorded, folder / f"{name}-after", count=times // 3, seed=4)
            figure = "started again over what is left, it comes to the undisturbed bits"
            rows.append(_cuts(f"a whole fleet, {name}", times // 3, done.wrong, figure))
    return rows


def _cuts(what: str, times: int, wrong: list[str], figure: str) -> Row:
    outcome = "no receipted update lost" if not wrong else f"broken: {wrong[:3]}"
    return _row(f"power cut: {what}", times, outcome, figure)


MEASURES: dict[str, Callable[[int], list[Row]]] = {
    "storms": _storms,
    "crashes": _crashes,
    "mutations": _mutations,
    "dropouts": _dropouts,
    "rush": _rush,
    "devices": _devices,
    "rounds": _rounds,
    "power": _power,
    "planted": _planted,
}
_HEAD = """# Reliability

What was done to Kellet, how often, and what came of it. Made by `python -m tests.faults.report`
out of `tests/faults/results.json`; each part says the command that measured it.

A fleet of the product's own machines runs on virtual time, over real SQLite files, under a
network, disks and people as bad as a seed makes them. After every event an account that is kept
apart holds, in Python's integers: C is the sum of the committed c_i, exactly; each update is
counted at most once, and receipted as the ledger has it; model, announced control and open sums
are the plain replay of the ledger's rows over the stored bodies; what is held in memory and in
the spool is bounded; no log and no public message has a nonce. A promise that does not hold is
printed with its seed and the command that replays it.

What is assumed: a receipt that the link delivers is the aggregator's (TLS says so; one with a
single damaged value is refused); no message lives as long as it takes to put a backup back.
"""


def page(results: dict[str, Any]) -> str:
    """The page for these results."""
    parts = [_HEAD]
    for name in MEASURES:
        if name not in results:
            continue
        parts += _table(name.capitalize(), results[name]["command"], results[name]["rows"])
    parts += _table("Processes", PROCESSES, processes.rows())
    return "".join(parts)


def _table(title: str, command: str, rows: list[Row]) -> list[str]:
    return [
        f"\n## {title}\n\n`{command}`\n",
        "\n| fault | times | outcome | figure |\n|---|---|---|---|\n",
        *(
            f"| {row['fault']} | {row['times']:,} | {row['outcome']} | {row['figure']} |\n"
            for row in rows
        ),
    ]


def _row(fault: str, times: int, outcome: str, figure: str) -> Row:
    return {"fault": fault, "times": times, "outcome": outcome, "figure": figure}


def main() -> int:
    """Measure what is asked for, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.report", description=__doc__)
    parser.add_argument("--run", nargs="*", default=[], metavar="NAME=TIMES")
    for wanted in parser.parse_args().run:
        name, _, times = wanted.partition("=")
        began = time.monotonic()
        rows = MEASURES[name](int(times or 1))
        command = f"python -m tests.faults.report --run {wanted}"
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[name] = {"command": command, "rows": rows}
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    PAGE.write_text(page(json.loads(RESULTS.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
