"""``kellet report``: the HTML report of a run that was kept."""

from __future__ import annotations

from pathlib import Path

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
        The --report or --state directory of a demo or a simulation, or the --state
        directory of a server. report.html goes there.
    json
        Answer with one JSON object.
    """
    from kellet.server.report import find_run, write_report

    run = find_run(directory)
    page = write_report(directory, run)
    with Console(json=json) as console:
        facts = {"report": str(page), "kind": run.kind, "rounds": len(run.curves[0].rounds)}
        console.result(facts, f"report: {page}")
