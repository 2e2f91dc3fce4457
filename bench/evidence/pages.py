"""Pages and figures alike for all experiments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.evidence.experiment import Results

__all__ = ["COLOURS", "drawn", "filled"]

TEMPLATES = Path(__file__).parent / "text"
COLOURS = ("#3d7ea6", "#e07a5f", "#52606d", "#6bb5a0", "#c9b458", "#8b6fb3", "#9aa5b1")

_FOOT = """
## How it was run

    {command}

`{name}.json` beside this page holds every cell with its settings. The command goes on where it was
interrupted, and runs a cell again where its settings or its plan changed (`--fresh`: all). The
cells took {minutes:.0f} minutes of one core, shared.{missing}

{where}.
"""
_MISSING = """

**{missing} of {all} cells are not worked yet**; the command goes on with them."""


def filled(name: str, results: Results[Any], **parts: str) -> str:
    """Return bench/evidence/text/<name>.md with its parts filled in, and how it was run.

    A part in the text is ``{part}``, the figure ``{name}.svg`` is beside the page.
    """
    text = (TEMPLATES / f"{name}.md").read_text(encoding="utf-8").format(**parts)
    cells = results.missing + len(results.found)
    foot = _FOOT.format(
        name=name,
        command=results.command,
        where=results.where,
        minutes=max(1.0, results.seconds / 60),
        missing=_MISSING.format(missing=results.missing, all=cells) if results.missing else "",
    )
    return text.rstrip() + "\n" + foot


@contextmanager
def drawn(path: Path, *, columns: int = 1, height: float = 3.8) -> Iterator[Any]:
    """Give ``columns`` axes in a row, and write them as ``path`` in the end, without a date."""
    import matplotlib

    matplotlib.use("Agg")
    from cycler import cycler
    from matplotlib import pyplot

    looks: Any = {
        "svg.hashsalt": "kellet",
        "font.size": 9,
        "lines.linewidth": 1.2,
        "axes.prop_cycle": cycler(color=COLOURS),
    }
    with pyplot.rc_context(looks):
        figure, axes = pyplot.subplots(
            1,
            columns,
            figsize=(max(6.0, 3.9 * columns), height),
            layout="constrained",
            squeeze=False,
        )
        yield axes[0]
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
