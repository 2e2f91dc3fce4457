"""Draw the comparison: seconds a round, and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.peers.results import Results

__all__ = ["draw"]

COLOURS = {
    "kellet": "#3d7ea6",
    "kellet, 2 processes": "#7fb2d1",
    "pfl": "#e07a5f",
    "pfl, 2 threads": "#eeb4a3",
    "flwr": "#52606d",
}


def draw(results: Results, path: Path) -> None:
    """Write an SVG or PNG, by the path's ending."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "kellet", "font.size": 9}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
        _bars(left, results, "seconds")
        left.set_ylabel("milliseconds a round (logarithmic)")
        left.set_yscale("log")
        _bars(right, results, "pss")
        right.set_ylabel("peak memory of all processes (PSS), MB")
        figure.suptitle(f"10 clients a round, 20 steps of 16; {results.machine['processor']}")
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, metadata=metadata, dpi=150)
        pyplot.close(figure)


def _bars(axes: Any, results: Results, what: str) -> None:
    width = 0.8 / len(COLOURS)
    for place, (name, colour) in enumerate(COLOURS.items()):
        found = [compared.sides.get(name) for compared in results.problems.values()]
        tried = [i for i, side in enumerate(found) if side]
        sides = [side for side in found if side]
        if what == "seconds":
            heights = [1000 * side.seconds.median for side in sides]
            errors: Any = [
                [1000 * (side.seconds.median - side.seconds.least) for side in sides],
                [1000 * (side.seconds.greatest - side.seconds.median) for side in sides],
            ]
        else:
            heights, errors = [side.pss / 1e6 for side in sides], None
        at = [i + (place - (len(COLOURS) - 1) / 2) * width for i in tried]
        axes.bar(at, heights, width, yerr=errors, color=colour, label=name)
    axes.set_xticks(range(len(results.problems)))
    axes.set_xticklabels([c.title.replace(", ", "\n", 1) for c in results.problems.values()])
    axes.spines[["top", "right"]].set_visible(False)
