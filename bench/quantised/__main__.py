"""Compare schemes, and say what int8 weights cost: ``python -m bench.quantised``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.evidence.plans import ROOT, source
from bench.evidence.progress import Progress
from bench.quantised import report
from bench.quantised.accuracy import Finished, Job, run
from bench.quantised.device import measure
from bench.quantised.figure import draw
from bench.quantised.grid import FULL, QUICK, SEEDS, cells_of, fingerprint
from bench.quantised.results import Results, begun, write
from kellet.sdk.errors import KelletError
from kellet.sdk.plan import Plan
from kellet.server.research.parallel import work

__all__ = ["main"]

DOCS = ROOT / "docs" / "evidence"
LARGE = "five_million"  # a plan that is there for its memory


def main(arguments: Sequence[str] | None = None) -> int:
    """Work the cells that are missing, and report. Returns the exit code."""
    options = _options(arguments)
    settings = FULL if options.full else QUICK
    tasks = options.task or list(settings)
    if not set(tasks) <= set(settings):
        print(f"without --full there is {', '.join(settings)} alone", file=sys.stderr)
        return 2
    path = options.json or (DOCS / "quantised.json" if options.full else None)
    try:
        results = begun(None if options.fresh else path, full=options.full, settings=settings)
    except KelletError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    try:
        _accuracies(results, path, tasks, processes=options.processes)
        if options.full and not options.no_devices:
            _devices(results, path, tasks)
    except KeyboardInterrupt:
        kept = f"{len(results.finished)} cells are kept in {path}; " if path else ""
        print(f"\ninterrupted; {kept}the same command goes on from there", file=sys.stderr)
        return 128 + signal.SIGINT
    except KelletError as error:
        print(f"\n{error}", file=sys.stderr)
        return error.exit_code
    print(report.text(results))
    if options.full and not options.json:
        (DOCS / "quantised.md").write_text(report.page(results), encoding="utf-8")
        draw(results, DOCS / "quantised.svg")
    return 0


def _accuracies(
    results: Results, path: Path | None, tasks: Sequence[str], *, processes: int
) -> None:
    """Work the cells that are not kept, or were of another setting or plan."""
    jobs: list[Job] = []
    for task in tasks:
        where = source(task)
        plan = Plan.open(where)
        mark = fingerprint(results.settings[task], plan)
        results.finished = [
            f for f in results.finished if f.cell.task != task or f.fingerprint == mark
        ]
        kept = {f.cell for f in results.finished}
        jobs += [
            Job(cell, results.settings[task], where, mark)
            for cell in cells_of(task, plan, SEEDS if results.full else SEEDS[:1])
            if cell not in kept
        ]
    jobs.sort(key=lambda job: job.cell.seed)  # an early end leaves whole tables of fewer seeds
    progress = Progress(len(jobs), len(results.finished))

    def done(job: Job, finished: Finished) -> None:
        results.finished.append(finished)
        if path:
            write(results, path)
        progress.tell(f"{job.cell}: {finished.accuracy:.4f}, {finished.seconds:.1f} s")

    work(run, jobs, processes, done)


def _devices(results: Results, path: Path | None, tasks: Sequence[str]) -> None:
    """Measure the tasks' plans, and where all tasks are run the large one, one at a time."""
    plans = [*tasks, *([LARGE] if set(tasks) == set(FULL) else [])]
    for name in plans:
        plan = Plan.open(source(name))
        if any(d.plan == name and d.plan_id == plan.hex_id[:16] for d in results.devices):
            continue
        print(f"measuring devices with {name}", file=sys.stderr)
        found = measure(name)
        results.devices = [d for d in results.devices if d.plan != name] + found
        if path:
            write(results, path)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.quantised", description=__doc__)
    parser.add_argument("--full", action="store_true", help="all tasks, three seeds, devices")
    parser.add_argument("--task", action="append", choices=list(FULL), help="this one alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where cells are kept")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--no-devices", action="store_true", help="accuracy alone")
    parser.add_argument("--fresh", action="store_true", help="work kept cells again")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
