"""Draw a run: how far each scheme is from float32, and what its device process takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.quantised.device import TORCH
from bench.quantised.grid import ALGORITHMS, NEAREST, SCHEMES
from bench.quantised.report import label
from bench.quantised.results import Results, difference

__all__ = ["draw"]

COLOURS = {
    "f32": "#52606d",
    "w8.row": "#3d7ea6",
    "w8.block64": "#6bb5a0",
    "w8.row+a8": "#8b6fb3",
    NEAREST: "#e07a5f",
    TORCH: "#c9b458",
}


def draw(results: Results, path: Path) -> None:
    """Write an SVG or PNG, by the path's ending."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "kellet", "font.size": 9}):
        figure, (left, right) = pyplot.subplots(
            1, 2, figsize=(11, 4.2), layout="constrained", width_ratios=(3, 2)
        )
        _differences(left, results)
        _peaks(right, results)
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, metadata=metadata, dpi=150)
        pyplot.close(figure)


def _differences(axes: Any, results: Results) -> None:
    groups = [(task, name) for task in results.tasks() for name in ALGORITHMS]
    for j, scheme in enumerate(SCHEMES[1:]):
        places, points = [], []
        for i, (task, name) in enumerate(groups):
            found = difference(results.of(task, name, scheme), results.of(task, name, "f32"))
            points += found
            places += [i + (j - 1.5) * 0.18] * len(found)
        if points:
            axes.plot(places, points, "o", ms=4, color=COLOURS[scheme], label=label(scheme))
    axes.axhline(0, color="black", lw=1)
    axes.axhspan(-0.5, 0.5, color="#9aa5b1", alpha=0.25, lw=0)
    axes.set_yscale("symlog", linthresh=1)  # the control falls far; the others stay near
    axes.yaxis.set_major_formatter("{x:g}")
    names = [f"{task}\n{ALGORITHMS[name]}" for task, name in groups]
    axes.set_xticks(range(len(groups)), names, rotation=60, ha="right", fontsize=7)
    axes.set(ylabel="points above float32, one a seed")
    if axes.lines[:-1]:  # the last is that of float32 itself
        axes.legend(fontsize=7)


def _peaks(axes: Any, results: Results) -> None:
    plans = list(dict.fromkeys(d.plan for d in results.devices))
    for j, (scheme, colour) in enumerate(COLOURS.items()):
        found = [
            (i + (j - 2.5) * 0.14, device.peak_mb)
            for i, plan in enumerate(plans)
            if (device := results.device(plan, scheme))
        ]
        if found:
            axes.bar(*zip(*found, strict=True), 0.14, color=colour, label=label(scheme))
    axes.set_xticks(range(len(plans)), plans)
    axes.set(ylabel="peak of the process, MB")
    if plans:
        axes.legend(fontsize=7)
