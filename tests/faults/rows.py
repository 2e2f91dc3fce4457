"""What tests over real processes measured, as rows of docs/reliability.md.

A test calls ``record`` when its promise has held. Nothing is written unless the environment asks:
``KELLET_RECORD_ROWS=1 pytest ...`` merges the rows of that run into ``process_results.json``,
whose rows have the keys of those in ``results.json`` (fault, times, outcome, figure).
``tests/faults/report.py`` puts them on the page out of ``rows()``. A row replaces the one of the
same fault, unless that one was tried more often: the small share of each run does not undo what a
long run showed.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["FILE", "record", "rows"]

FILE = Path(__file__).parent / "process_results.json"
ASKED = "KELLET_RECORD_ROWS"

Row = dict[str, Any]


def rows(file: Path = FILE) -> list[Row]:
    """What has been recorded, by name; empty where nothing has."""
    text = file.read_text() if file.exists() else ""
    found: list[Row] = json.loads(text or "[]")
    return found


def record(fault: str, times: int, outcome: str, figure: str = "", *, file: Path = FILE) -> None:
    """Print a result, and keep it where the environment asks.

    ``fault``: in words. ``times``: how often it was tried. ``figure``: what was measured.
    """
    print(f"{fault}: {times:,} times, {outcome}{f'; {figure}' if figure else ''}")
    if not os.environ.get(ASKED):
        return
    file.touch()
    with file.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # tests may run side by side
        kept = {row["fault"]: row for row in rows(file)}
        before = kept.get(fault)
        if before is None or times >= before["times"]:
            kept[fault] = {"fault": fault, "times": times, "outcome": outcome, "figure": figure}
        listed = [kept[name] for name in sorted(kept)]
        file.write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n")
