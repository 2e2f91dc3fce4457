"""A sweep of simulated runs, as people see it."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kellet.sdk.errors import FleetError
from kellet.sdk.signals import Interrupted
from kellet.server.commands.algorithm import AlgorithmOptions
from kellet.server.research import Measures, Source, Sweep, sweep, write_parquet
from kellet.server.research.names import text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kellet.sdk.console import Console
    from kellet.server.commands.sweep_options import SweepOptions
    from kellet.server.research import Cell, Line, Results, RoundRow, RunRow

__all__ = ["run_sweep", "table"]

_SHOWN = 10  # runs in a live display


def run_sweep(
    console: Console,
    plan: str,
    source: Source,
    settings: Mapping[str, Any],
    options: SweepOptions,
    *,
    rounds: int,
    seed: int,
    holdout: float,
    measures: Measures,
    execution: Mapping[str, Any],
    report: Path | None,
) -> None:
    """Work the runs that are missing, tell them as they end, and put all into one table."""
    axes, seeds = options.axes(seed)
    if "algorithm" in axes:  # MODULE:NAME is imported, and known by its name from then on
        axes["algorithm"] = [AlgorithmOptions(algorithm=name).name for name in axes["algorithm"]]
    teller = _Teller(console, rounds, options.out)
    try:
        came = sweep(
            plan,
            source,
            axes=axes,
            seeds=seeds,
            settings={name: value for name, value in settings.items() if name not in axes},
            execution=execution,
            rounds=rounds,
            holdout=holdout,
            measures=measures,
            out=options.out,
            processes=options.processes,
            begin=teller.begin,
            on_round=teller.round,
            on_run=teller.run,
        )
    except Interrupted:
        console.end_display(keep=True)
        teller.interrupted()
        raise
    facts = teller.summary(came)
    if options.parquet and options.out is not None:
        written = write_parquet(options.out, came.runs, came.rounds)
        facts["parquet"] = [str(path) for path in written]
    if report is not None:
        from kellet.server.report import write_sweep_report

        facts["report"] = str(write_sweep_report(report, came))
    console.end_display(keep=False)
    console.result(facts, _words(facts, came, measures.target))
    if facts["failed"] == len(came.runs):
        raise FleetError("no run could be finished", why=came.runs[-1].why, repair="lower local_lr")


class _Teller:
    """Shows runs as they end, and how far the sweep is."""

    def __init__(self, console: Console, rounds: int, out: Path | None) -> None:
        self._console = console
        self._rounds = rounds
        self._out = out
        self._total = self._kept = 0
        self._ended: list[RunRow] = []
        self._at_work: dict[str, RoundRow] = {}
        self._began = time.monotonic()

    def begin(self, cells: list[Cell], results: Results) -> None:
        self._total, self._kept = len(cells), len(results.runs)
        out = str(self._out) if self._out else None
        facts = {"runs": self._total, "kept": self._kept, "rounds": self._rounds, "out": out}
        self._console.event("sweep", facts)
        if not self._console.live:
            kept = f", {self._kept} of them kept from before" if self._kept else ""
            self._console.say(f"{self._total} runs of {self._rounds} rounds{kept}")
        self._console.show(self._view)

    def round(self, row: RoundRow) -> None:
        self._at_work[row.cell] = row
        self._console.event("round", msgspec.to_builtins(row))
        self._console.show(self._view)

    def run(self, row: RunRow) -> None:
        self._ended.append(row)
        self._at_work.pop(row.cell, None)
        self._console.event("run", msgspec.to_builtins(row))
        if not self._console.live:
            self._console.say(f"{self._kept + len(self._ended)}/{self._total}  {_in_short(row)}")
        self._console.show(self._view)

    def interrupted(self) -> None:
        """Say what is kept, and how to go on."""
        done = self._kept + len(self._ended)
        if not self._total:
            return
        if self._out is None:
            said = f"{done} of {self._total} runs were finished and are lost; --out DIR keeps them"
        else:
            said = (
                f"{done} of {self._total} runs are kept in {self._out}; "
                "the same command goes on from there"
            )
        print(f"kellet: {said}", file=sys.stderr, flush=True)

    def summary(self, came: Sweep) -> dict[str, Any]:
        return {
            "event": "summary",
            "runs": len(came.runs),
            "failed": sum(row.state == "failed" for row in came.runs),
            "kept": self._kept,
            "rounds": self._rounds,
            "seconds": round(time.monotonic() - self._began, 2),
            "out": str(self._out) if self._out else None,
            "table": [msgspec.to_builtins(line) for line in came.table()],
        }

    def _view(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding  # a bar alone does not end its line
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        done = self._kept + len(self._ended)
        rounds = sum(row.round for row in self._at_work.values())
        total, there = self._total * self._rounds, done * self._rounds + rounds
        new = len(self._ended) * self._rounds + rounds
        left = (time.monotonic() - self._began) / new * (total - there) if new else None
        head = f"{done} of {self._total} runs of {self._rounds} rounds"
        if left is not None:
            head += f", {_duration(left)} left"
        lines = [Text(_in_short(row), no_wrap=True) for row in self._ended[-_SHOWN:]]
        working = [
            Text(f"{row.cell}: round {row.round}{_accuracy(row.accuracy)}", "dim", no_wrap=True)
            for row in self._at_work.values()
        ]
        return Group(Text(head), Padding(ProgressBar(total, there, width=60), 0), *lines, *working)


def table(lines: Sequence[Line], target: float | None) -> str:
    """The lines of a sweep in columns, for a terminal: means over the seeds, accuracy with range.

    Settings that are the same in all lines are left out.
    """
    names = list(dict.fromkeys(name for line in lines for name in line.settings))
    told = [n for n in names if len({text(line.settings.get(n)) for line in lines}) > 1]
    told = told or ["algorithm"]
    columns = [column for column in _columns(target) if _has(lines, column[1])]
    head = [*(name.replace("_", " ") for name in told), "runs", *(title for title, *_ in columns)]
    rows = [
        [
            *(text(line.settings[name]) if name in line.settings else "" for name in told),
            str(line.runs) if not line.failed else f"{line.runs - line.failed} of {line.runs}",
            *(_cell(line, name, form) for _, name, form in columns),
        ]
        for line in lines
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(_aligned(row, widths, len(told)) for row in (head, *rows))


def _aligned(row: Sequence[str], widths: Sequence[int], left: int) -> str:
    cells = zip(row, widths, strict=True)
    placed = (cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(cells))
    return "  ".join(placed).rstrip()


def _columns(target: float | None) -> list[tuple[str, str, str]]:
    """(heading, number, how it is written) of the table's columns."""
    reached = f"to {target:.0%}" if target is not None else "to target"
    return [
        ("accuracy (range)", "accuracy", "range"),
        ("best", "best_accuracy", ".3f"),
        ("loss", "loss", ".3f"),
        ("PR-AUC", "pr_auc", ".3f"),
        ("ROC-AUC", "roc_auc", ".3f"),
        ("client mean", "client_accuracy", ".3f"),
        ("worst 10%", "client_worst", ".3f"),
        ("drift", "drift_mean", ".3g"),
        ("max", "drift_max", ".3g"),
        ("of G/mu", "of_bound", ".0%"),
        ("own models", "personal_accuracy", ".3f"),
        ("worst 10%", "personal_worst", ".3f"),
        (f"rounds {reached}", "rounds_to_target", "of"),
        ("MB up", "up_mb", ".2f"),
        ("MB down", "down_mb", ".2f"),
    ]


def _has(lines: Sequence[Line], name: str) -> bool:
    return any(line.numbers[name] is not None for line in lines)


def _cell(line: Line, name: str, form: str) -> str:
    found = line.numbers[name]
    if found is None:
        return "-"
    if form == "range":
        spread = f" ({found.least:.3f}-{found.greatest:.3f})" if found.of > 1 else ""
        return f"{found.mean:.3f}{spread}"
    if form == "of":
        runs = line.runs - line.failed
        return f"{found.mean:.1f}" + (f" ({found.of} of {runs})" if found.of < runs else "")
    return format(found.mean, form)


def _words(facts: Mapping[str, Any], came: Sweep, target: float | None) -> str:
    lines = ["", table(came.table(), target), ""]
    lines.append(
        f"{facts['runs']} runs, {facts['seconds']:.1f} s; numbers are means over the seeds"
    )
    for row in came.runs:
        if row.state == "failed":
            lines.append(f"failed: {row.cell}: {row.why}")
    if facts["out"]:
        lines.append(f"rows: {facts['out']}")
    if "report" in facts:
        lines.append(f"report: {facts['report']}")
    return "\n".join(lines)


def _in_short(row: RunRow) -> str:
    if row.state == "failed":
        return f"{row.cell}: failed after {row.rounds} rounds"
    worst = f", worst tenth {row.client_worst:.3f}" if row.client_worst is not None else ""
    return f"{row.cell}: {row.rounds} rounds{_accuracy(row.accuracy)}{worst}"


def _accuracy(value: float | None) -> str:
    return "" if value is None else f", accuracy {value:.3f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
