"""Drawing as SVG that takes its colours from the page, and one style for each line.

Matplotlib draws with placeholder colours; `svg` replaces each by a CSS variable, so that
one drawing serves a light and a dark page. Text stays text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "AWAY",
    "BAD",
    "GOOD",
    "INK",
    "LINE",
    "MAIN",
    "PAPER",
    "SOFT",
    "key",
    "label_ends",
    "shown",
    "styles",
    "svg",
    "whole_rounds",
]

# Placeholder -> CSS variable. Each is a colour that no chart would have by chance.
_PAGE_COLOURS = {
    "#010203": "--ink",
    "#010204": "--soft",
    "#010205": "--line",
    "#010206": "--paper",
    "#010221": "--good",
    "#010222": "--bad",
    "#010223": "--away",
    "#010211": "--scaffold",
    "#010212": "--fedprox",
    "#010213": "--fedavg",
    "#010214": "--fourth",
    "#010215": "--fifth",
    "#010216": "--sixth",
    "#010217": "--seventh",
    "#010218": "--eighth",
}
INK, SOFT, LINE, PAPER, GOOD, BAD, AWAY, *_LINES = _PAGE_COLOURS
MAIN = _LINES[0]

# Colour is never the only difference: dashes too, and a label at the line's end.
_DASHES: tuple[Any, ...] = (
    *("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (7, 1.5, 1.5, 1.5))),
    *((0, (3, 1)), (0, (9, 2)), (0, (4, 1, 1, 1, 1, 1)), (0, (1, 0.8))),
)
_OWN = {"scaffold": 0, "fedprox": 1, "fedavg": 2}
_NAMES = {
    "scaffold": "SCAFFOLD",
    "fedprox": "FedProx",
    "fedavg": "FedAvg",
    "scaffold_m": "SCAFFOLD-M",
    "feddyn": "FedDyn",
    "fednova": "FedNova",
    "perfedavg": "Per-FedAvg",
}
_RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kellet",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": LINE,
    "xtick.labelcolor": SOFT,
    "ytick.color": LINE,
    "ytick.labelcolor": SOFT,
    "text.color": INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def shown(algorithm: str) -> str:
    """An algorithm's name as people write it."""
    return _NAMES.get(algorithm, algorithm)


def styles(lines: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Matplotlib's properties for each line: its own for an algorithm that has one.

    The others take the eight in turn, those that are free first; from the ninth line on two
    share a colour, with other dashes.
    """
    names = list(dict.fromkeys(lines))
    own = {name: _OWN[name.lower()] for name in names if name.lower() in _OWN}
    free = [place for place in range(len(_LINES)) if place not in own.values()]
    found = {name: _style(place, 0) for name, place in own.items()}
    for i, name in enumerate(name for name in names if name not in own):
        found[name] = _style(free[i % len(free)], i // len(free))
    return found


def _style(place: int, again: int) -> dict[str, Any]:
    main = place == again == 0
    return {
        "color": _LINES[place],
        "linestyle": _DASHES[(place + 3 * again) % len(_DASHES)],
        "linewidth": 2.2 if main else 1.8,
        "zorder": 5 if main else 4 if place == 1 else 3,
    }


def key(style: dict[str, Any]) -> str:
    """A piece of a line of this style, as HTML beside its name."""
    dashes = "solid" if style["linestyle"] == "-" else "dashed"
    if style["linestyle"] in (_DASHES[2], _DASHES[7]):
        dashes = "dotted"
    colour = f"var({_PAGE_COLOURS[style['color']]})"
    return f'<span class="key" style="border-color: {colour}; border-top-style: {dashes}"></span>'


def label_ends(axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Write each line's name at its end, moved apart where they would lie on one another."""
    if not ends:
        return
    low, high = axes.get_ylim()
    gap = 0.085 * (high - low)
    ends = sorted(ends, key=lambda end: end[1])
    places = [end[1] for end in ends]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + gap)
    shift = sum(places) / len(places) - sum(end[1] for end in ends) / len(ends)
    for (x, _, name, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            name, (x, place - shift), xytext=(8, 0), textcoords="offset points",
            va="center", color=colour, fontweight="bold", fontsize=9.5, annotation_clip=False,
        )  # fmt: skip


def whole_rounds(axes: Axes) -> None:
    """Number the x axis by whole rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))


def svg(name: str, label: str, size: tuple[float, float], draw: Callable[[Axes], None]) -> str:
    """Draw on a new figure; its SVG, ready to stand inside a page. ``label`` is its alt text."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_RC):
        figure: Figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _themed(out.getvalue(), name, label)


def _themed(svg: str, name: str, label: str) -> str:
    svg = svg[svg.index("<svg") :]
    for colour, variable in _PAGE_COLOURS.items():
        svg = svg.replace(colour, f"var({variable})")
    # Ids must be unique in the page, and the page says how large the drawing is.
    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # it would rule the whole page
    # The page chooses the typeface; Matplotlib's releases write it in two ways.
    svg = re.sub(r" ?font-family: [^;\"]*;?", "", svg)
    svg = re.sub(r"font: ([\w ]*?[\d.]+px) '[^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
