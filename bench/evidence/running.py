"""Work an experiment's cells, keep them as they finish, and report.

Apart from ``__main__``: what other processes run must be found under its own name.
"""

from __future__ import annotations

import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.evidence.experiment import Cell, Experiment, Found, Results, marker
from bench.evidence.kept import Finished, Kept, begun, write
from bench.evidence.plans import ROOT
from bench.evidence.progress import Progress
from bench.results import machine, today, versions
from kellet.sdk.errors import KelletError, UsageError
from kellet.server.research.parallel import work

__all__ = ["run"]

DOCS = ROOT / "docs" / "evidence"


def run(
    experiment: Experiment[Any],
    *,
    full: bool = False,
    path: Path | None = None,
    fresh: bool = False,
    processes: int = 1,
    only_page: bool = False,
) -> int:
    """Work the cells that are missing, and report. Returns the exit code.

    ``path``: the JSON file; by default the full run has one in docs/evidence, the quick none.
    ``only_page``: report on the cells that are kept, and work none.
    """
    path = path or (DOCS / f"{experiment.name}.json" if full else None)
    kept: Kept | None = None
    try:
        kept = begun(None if fresh else path, experiment.name, full=full)
        results = _worked(experiment, kept, path, 0 if only_page else processes)
    except KeyboardInterrupt:
        there = f"{len(kept.finished)} cells are kept in {path}; " if path and kept else ""
        print(f"\ninterrupted; {there}the same command goes on from there", file=sys.stderr)
        return 128 + signal.SIGINT
    except KelletError as error:
        print(f"\n{error}", file=sys.stderr)
        return error.exit_code
    if not results.found:
        print(f"no cell is kept{f' in {path}' if path else ''}", file=sys.stderr)
        return UsageError.exit_code
    page = experiment.page(results)
    if not full or path is None:
        print(page)
        return 0
    path.with_suffix(".md").write_text(page.rstrip() + "\n", encoding="utf-8")
    experiment.figure(results, path.with_suffix(".svg"))
    print(f"{path.with_suffix('.md')} and .svg are written", file=sys.stderr)
    return 0


def _worked(
    experiment: Experiment[Any], kept: Kept, path: Path | None, processes: int
) -> Results[Any]:
    """Work the cells that are not kept, or were of other settings or another plan.

    None of them where ``processes`` is 0.
    """
    marks = dict(marker(experiment.cells(kept.full)))
    wanted = set(marks.values())
    kept.finished = [f for f in kept.finished if f.mark in wanted]
    there = {f.mark for f in kept.finished}
    missing = [cell for cell, mark in marks.items() if mark not in there]
    if not processes:
        missing, left = [], len(missing)
    else:
        left = 0
    progress = Progress(len(missing), len(there))

    def done(cell: Cell, came: tuple[Found, float]) -> None:
        found, seconds = came
        cells = msgspec.to_builtins(cell)
        kept.finished.append(Finished(marks[cell], cells, found, round(seconds, 2)))
        kept.date, kept.machine, kept.versions = today(), machine(), versions()
        if path:
            write(kept, path)
        progress.tell(f"{cell}: {_in_short(found)}, {seconds:.1f} s")

    work(partial(_timed, experiment.work), missing, processes, done)
    found = {f.mark: f.found for f in kept.finished}
    return Results(
        command=kept.command,
        where=kept.where,
        seconds=sum(f.seconds for f in kept.finished),
        found={cell: found[mark] for cell, mark in marks.items() if mark in found},
        missing=left,
    )


def _timed(do: Any, cell: Cell) -> tuple[Found, float]:
    began = time.perf_counter()
    # What is kept is what JSON holds of it, in the run that worked it as well.
    found = msgspec.json.decode(msgspec.json.encode(do(cell)))
    return found, time.perf_counter() - began


def _in_short(found: Found) -> str:
    """The single numbers among the results."""
    numbers = {k: v for k, v in found.items() if isinstance(v, (int, float))}
    return ", ".join(f"{name} {value:.5g}" for name, value in numbers.items())
