"""``kellet report``: the HTML report of a run that was kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyclopts import App

from kellet.sdk.console import Console

__all__ = ["command"]

command = App(name="report")


@command.default
def report(directory: Path, /, *, json: bool = False) -> None:
    """Make the HTML report of a run that was kept.

    Parameters
    ----------
    directory
        The --report or --state directory of a demo or a simulation, the --out directory
        of a sweep, or the --state directory of a server. report.html goes there.
    json
        Answer with one JSON object.
    """
    from kellet.server.report import find_run, write_report, write_sweep_report
    from kellet.server.research import Sweep, read_results
    from kellet.server.research.results import CONFIGURATION

    facts: dict[str, Any]
    if (directory / CONFIGURATION).is_file():
        sweep = Sweep(*read_results(directory))
        page = write_sweep_report(directory, sweep)
        facts = {"kind": "sweep", "runs": len(sweep.runs), "rounds": len(sweep.rounds)}
    else:
        run = find_run(directory)
        page = write_report(directory, run)
        facts = {"kind": run.kind, "rounds": len(run.curves[0].rounds)}
    with Console(json=json) as console:
        facts = {"report": str(page), **facts}
        console.result(facts, f"report: {page}")
