"""One line that says how far a run is; a line a cell where nobody looks at a terminal."""

from __future__ import annotations

import sys
import time

__all__ = ["Progress"]


class Progress:
    """``total`` cells are to be worked, ``kept`` are there from before."""

    def __init__(self, total: int, kept: int) -> None:
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        if kept:
            print(f"{kept} cells are kept from before", file=sys.stderr)

    def tell(self, what: str) -> None:
        """Count a cell, and say what came of it and how long the others will take."""
        self._done += 1
        left = (time.monotonic() - self._began) / self._done * (self._total - self._done)
        line = f"{self._done}/{self._total}  {what}  ({left / 60:.0f} min left)"
        if sys.stderr.isatty():
            end = "\n" if self._done == self._total else ""
            print(f"\r\x1b[K{line}", end=end, file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
