"""Draw a run: how near the fused steps come to the triad, and how far the peers are behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.limits import BYTES
from bench.results import Results, Spread
from bench.targets import FUSED, share

__all__ = ["draw"]

PEERS = ("numpy", "numpy out=", "torch", "torch._foreach", "torch.compile")
COLOURS = ("#9aa5b1", "#52606d", "#e07a5f", "#b5533c", "#3d7ea6")


def draw(results: Results, path: Path) -> None:
    """Write an SVG or PNG, by the path's ending."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context({"svg.hashsalt": "kellet", "font.size": 9}):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
        _shares(left, results)
        _peers(right, results)
        figure.suptitle(f"Local steps, {results.machine['processor']}, run {results.label}")
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, metadata=metadata, dpi=150)
        pyplot.close(figure)


def _bars(spreads: list[Spread]) -> tuple[list[float], list[list[float]]]:
    """Return medians, and how far the least and the greatest are from them."""
    medians = [s.median for s in spreads]
    return medians, [
        [s.median - s.least for s in spreads],
        [s.greatest - s.median for s in spreads],
    ]


def _shares(axes: Any, results: Results) -> None:
    highest = 1.0
    for i, case in enumerate(FUSED):
        found = [(m.n, share(m, "triad", BYTES["triad"])) for m in results.measured]
        of_case = [m.case == case for m in results.measured]
        points = [(n, s) for (n, s), ours in zip(found, of_case, strict=True) if ours and s]
        if points:
            medians, errors = _bars([s for _, s in points])
            highest = max(highest, *medians)
            sizes = [n * (1 + 0.05 * (i - len(FUSED) / 2)) for n, _ in points]
            axes.errorbar(sizes, medians, yerr=errors, marker="o", ms=4, lw=1, label=case)
    axes.axhline(1, color="black", lw=1)
    axes.axhline(0.9, color="black", lw=1, ls=":")
    axes.set(xscale="log", xlabel="parameters", ylabel="bytes a second / triad's")
    axes.set_ylim(0, 1.25 * highest)  # by the medians: one disturbed round would hide the rest
    axes.legend(fontsize=7)


def _peers(axes: Any, results: Results) -> None:
    n = max(m.n for m in results.measured)
    cases = [case for case in FUSED if results.of(case, n)]
    for j, (peer, colour) in enumerate(zip(PEERS, COLOURS, strict=True)):
        places, spreads = [], []
        for i, case in enumerate(cases):
            measured = results.of(case, n)
            timing = measured and measured.contenders.get(peer)
            if timing:
                places.append(i + (j - 2) * 0.16)
                spreads.append(timing.ratio)
        if spreads:
            medians, errors = _bars(spreads)
            axes.bar(places, medians, 0.15, yerr=errors, color=colour, label=peer,
                     error_kw={"lw": 0.8})  # fmt: skip
    axes.axhline(1, color="black", lw=1)
    axes.set_xticks(range(len(cases)), cases, rotation=30, ha="right")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(ylabel=f"time / Kellet's, at {n:.0e} parameters")
    axes.legend(fontsize=7)
