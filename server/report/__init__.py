"""The HTML report of a run: one file that needs nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from kellet.sdk.durable import write_file
from kellet.sdk.errors import ExtraMissing, UsageError
from kellet.server.report.record import Run, save_run
from kellet.server.report.sources import find_run, from_history

if TYPE_CHECKING:
    from kellet.server.research import Sweep

__all__ = [
    "REPORT_FILE",
    "check_folder",
    "check_installed",
    "find_run",
    "from_history",
    "save_run",
    "write_report",
    "write_sweep_report",
]

REPORT_FILE = "report.html"


def check_installed() -> None:
    """Raise ``ExtraMissing`` now, and not after the run, where Matplotlib is absent."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ExtraMissing("server", "matplotlib")


def check_folder(folder: Path) -> None:
    """Raise ``UsageError`` now, and not after the run, where ``folder`` cannot be one."""
    for path in (folder.absolute(), *folder.absolute().parents):
        if path.exists() or path.is_symlink():
            if not path.is_dir():
                raise UsageError(
                    f"--report {folder}",
                    why=f"{path} is not a directory",
                    repair="name a directory; it is made where there is none",
                )
            return


def write_report(folder: Path, run: Run) -> Path:
    """Write ``report.html`` into ``folder``; its path. Raises ``ExtraMissing``, ``StorageError``.

    ``save_run`` keeps what it was made from.
    """
    check_installed()
    from kellet.server.report.page import render

    page = (folder / REPORT_FILE).absolute()
    write_file(page, render(run).encode())
    return page


def write_sweep_report(folder: Path, sweep: Sweep) -> Path:
    """The same for a sweep of simulated runs."""
    check_installed()
    from kellet.server.report.sweep_page import render

    page = (folder / REPORT_FILE).absolute()
    write_file(page, render(sweep).encode())
    return page
