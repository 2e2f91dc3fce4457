"""The report's charts, as SVG that takes its colours from the page.

Matplotlib draws with placeholder colours; `_themed` replaces each by a CSS
variable, so that one drawing serves a light and a dark page. Text stays text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kellet.server.report.record import Curve, Event, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["accuracy_chart", "bytes_chart", "drift_chart", "participation_chart"]

# Placeholder -> CSS variable. Each is a colour that no chart would have by chance.
_PAGE_COLOURS = {
    "#010203": "--ink",
    "#010204": "--soft",
    "#010205": "--line",
    "#010206": "--paper",
    "#010211": "--scaffold",
    "#010212": "--fedprox",
    "#010213": "--fedavg",
    "#010221": "--good",
    "#010222": "--bad",
    "#010223": "--away",
}
INK, SOFT, LINE, PAPER, _S, _P, _A, GOOD, BAD, AWAY = _PAGE_COLOURS

# Colour is never the only difference: dashes too, and a label at the line's end.
_STYLES: dict[str, dict[str, Any]] = {
    "scaffold": {"color": _S, "linestyle": "-", "linewidth": 2.2, "zorder": 5},
    "fedprox": {"color": _P, "linestyle": (0, (5, 1.5)), "linewidth": 1.8, "zorder": 4},
    "fedavg": {"color": _A, "linestyle": (0, (1.5, 1.2)), "linewidth": 1.8, "zorder": 3},
}
NAMES = {"scaffold": "SCAFFOLD", "fedprox": "FedProx", "fedavg": "FedAvg"}
_HALF = (5.4, 3.1)  # inches; the page scales them
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


def accuracy_chart(run: Run) -> str:
    """Accuracy on the test set by round."""

    def draw(axes: Axes) -> None:
        _lines(axes, run, lambda r: None if r.accuracy is None else 100 * r.accuracy)
        axes.set_ylabel("accuracy, %")

    label = f"Lines: accuracy on the test set over the rounds, {_named(run)}"
    return _svg("accuracy", label, _HALF, draw)


def drift_chart(run: Run) -> str:
    """How far devices moved from the round's model."""

    def draw(axes: Axes) -> None:
        _lines(axes, run, lambda r: r.drift)
        axes.set_ylabel("drift, ||y - x||")
        axes.set_ylim(bottom=0)

    label = f"Lines: mean drift of the devices over the rounds, {_named(run)}"
    return _svg("drift", label, _HALF, draw)


def bytes_chart(run: Run) -> str:
    """Payload bytes by round, both ways, of the main curve."""

    def draw(axes: Axes) -> None:
        rounds = run.curves[0].rounds
        numbers = [r.round for r in rounds]
        up = [r.uplink_bytes / 1e3 for r in rounds]
        down = [r.downlink_bytes / 1e3 for r in rounds]
        axes.bar(numbers, up, width=0.72, color=_S, label="from devices")
        axes.bar(numbers, [-d for d in down], width=0.72, color=AWAY, label="to devices")
        axes.axhline(0, color=SOFT, linewidth=0.8)
        axes.set_ylabel("kB in a round")
        axes.set_xlabel("round")
        _whole_rounds(axes)
        axes.yaxis.set_major_formatter(lambda value, _position: f"{abs(value):,.0f}")
        axes.legend(
            frameon=False, loc="lower right", ncols=2, bbox_to_anchor=(1.0, 1.0), borderpad=0
        )

    label = "Bars: kilobytes in each round, from devices upwards and to devices downwards"
    return _svg("bytes", label, _HALF, draw)


def participation_chart(run: Run) -> str:
    """Who was asked, counted, killed and restarted, over time or (without one) over rounds."""
    height = 0.7 + 0.32 * len(run.devices)
    timed = bool(run.events)

    def draw(axes: Axes) -> None:
        (_draw_times if timed else _draw_rounds)(axes, run)
        axes.set_yticks(range(len(run.devices)), run.devices)
        axes.set_ylim(len(run.devices) - 0.4, -0.6)
        axes.grid(visible=False)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.legend(
            frameon=False,
            loc="lower left",
            ncols=6,
            bbox_to_anchor=(0.0, 1.0),
            borderpad=0,
            handletextpad=0.4,
            columnspacing=1.4,
        )

    label = (
        "A row for each device: when it ran, was counted, too late, killed and started again"
        if timed
        else "A row for each device: the rounds in which it was counted or asked in vain"
    )
    return _svg("participation", label, (11.2, height), draw)


def _lines(axes: Axes, run: Run, value: Callable[[Any], float | None]) -> None:
    ends: list[tuple[float, float, str, str]] = []
    for curve in _compared(run):
        points = [(r.round, v) for r in curve.rounds if (v := value(r)) is not None]
        if not points:
            continue
        style = _STYLES[curve.algorithm]
        axes.plot(*zip(*points, strict=True), **style)
        ends.append((*points[-1], NAMES[curve.algorithm], style["color"]))
    main = run.curves[0]
    if main.source == "live":
        points = [(r.round, v) for r in main.rounds if (v := value(r)) is not None]
        axes.plot(
            *zip(*points, strict=True),
            linestyle="none", marker="o", markersize=4.2, zorder=6,
            markerfacecolor=PAPER, markeredgecolor=_STYLES[main.algorithm]["color"],
            markeredgewidth=1.3, label=f"{NAMES[main.algorithm]}, live",
        )  # fmt: skip
        axes.legend(frameon=False, loc="best", handletextpad=0.2)
    _label_ends(axes, ends)
    axes.set_xlabel("round")
    _whole_rounds(axes)


def _compared(run: Run) -> Sequence[Curve]:
    simulated = [curve for curve in run.curves if curve.source == "simulated"]
    return simulated or run.curves


def _label_ends(axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
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


def _whole_rounds(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))


def _draw_times(axes: Axes, run: Run) -> None:
    rows = {device: row for row, device in enumerate(run.devices)}
    end = max(event.at for event in run.events)
    for device, row in rows.items():
        for begin, until in _spans(run.events, device, end):
            axes.plot([begin, until], [row, row], color=LINE, linewidth=9, solid_capstyle="butt")
    edges = [r.closed_at for r in run.curves[0].rounds if r.closed_at is not None]
    for edge in edges:
        axes.axvline(edge, color=LINE, linewidth=0.6, zorder=0)
    _number_rounds(axes, run, edges)
    main = _STYLES[run.algorithm]["color"]
    marks = (
        ("counted", "counted", {"marker": "o", "markersize": 6, "color": main}),
        ("refused", "trained, too late", {"marker": "o", "markersize": 6, "color": main,
                                          "markerfacecolor": PAPER}),
        ("killed", "killed", {"marker": "x", "markersize": 7, "markeredgewidth": 2.2,
                              "color": BAD}),
        ("restarted", "started again", {"marker": ">", "markersize": 6, "color": GOOD}),
    )  # fmt: skip
    for kind, label, style in marks:
        events = [event for event in run.events if event.kind == kind]
        axes.plot(
            [event.at for event in events], [rows[event.device] for event in events],
            linestyle="none", label=label, zorder=4, **style,
        )  # fmt: skip
    axes.set_xlabel("seconds after the start; lines are the ends of rounds")
    first = min((e.at for e in run.events if e.kind != "started"), default=0.0)
    axes.set_xlim(max(0.0, first - 1.0), end + 0.2)  # not the seconds that processes take to start


def _spans(events: Sequence[Event], device: str, end: float) -> list[tuple[float, float]]:
    """When a device was up."""
    spans, since = [], None
    for event in events:
        if event.device != device:
            continue
        if event.kind in ("started", "restarted"):
            since = event.at
        elif event.kind in ("killed", "stopped") and since is not None:
            spans.append((since, event.at))
            since = None
    return [*spans, (since, end)] if since is not None else spans


def _number_rounds(axes: Axes, run: Run, edges: Sequence[float]) -> None:
    if len(edges) < 2:
        return
    every = max(1, len(edges) // 12)
    for number in range(0, len(edges), every):
        axes.annotate(
            str(run.curves[0].rounds[number].round), (edges[number], len(run.devices) - 0.42),
            ha="right", va="bottom", fontsize=7.5, color=SOFT, xytext=(-1.5, 0),
            textcoords="offset points",
        )  # fmt: skip


def _draw_rounds(axes: Axes, run: Run) -> None:
    main = _STYLES[run.algorithm]["color"]
    points: dict[str, list[tuple[int, int]]] = {"counted": [], "asked": []}
    for row, device in enumerate(run.devices):
        for r in run.curves[0].rounds:
            if device in r.counted:
                points["counted"].append((r.round, row))
            elif device in r.asked:
                points["asked"].append((r.round, row))
    for kind, label, face in (("counted", "counted", main), ("asked", "asked in vain", PAPER)):
        xs, ys = [p[0] for p in points[kind]], [p[1] for p in points[kind]]
        axes.plot(
            xs, ys, linestyle="none", marker="o", markersize=6, color=main,
            markerfacecolor=face, label=label,
        )  # fmt: skip
    axes.set_xlabel("round")
    _whole_rounds(axes)


def _named(run: Run) -> str:
    return ", ".join(NAMES[curve.algorithm] for curve in _compared(run))


def _svg(name: str, label: str, size: tuple[float, float], draw: Callable[[Axes], None]) -> str:
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
