"""Work an experiment, and write its table and figure: ``python -m bench.evidence NAME``.

Without --full it is a short form, whose table is printed. The full form keeps each cell as it
finishes in docs/evidence/NAME.json, goes on from there, and writes NAME.md and NAME.svg beside it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.evidence.experiment import EXPERIMENTS, load
from bench.evidence.running import run

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code."""
    options = _options(arguments)
    return run(
        load(options.name),
        full=options.full,
        path=options.json,
        fresh=options.fresh,
        processes=options.processes,
        only_page=options.page,
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.evidence", description=__doc__)
    parser.add_argument("name", choices=sorted(EXPERIMENTS), metavar="NAME", help="%(choices)s")
    parser.add_argument("--full", action="store_true", help="all cells, into docs/evidence")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where cells are kept")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--fresh", action="store_true", help="work kept cells again")
    kept.add_argument("--page", action="store_true", help="work none: write it of what is kept")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
