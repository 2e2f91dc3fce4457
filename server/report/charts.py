"""The charts of a run's report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kellet.server.report.drawing import (
    AWAY,
    BAD,
    GOOD,
    LINE,
    MAIN,
    PAPER,
    SOFT,
    label_ends,
    shown,
    styles,
    svg,
    whole_rounds,
)
from kellet.server.report.record import Curve, Event, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["accuracy_chart", "bytes_chart", "drift_chart", "participation_chart"]

_HALF = (5.4, 3.1)  # inches; the page scales them


def accuracy_chart(run: Run) -> str:
    """Accuracy on the test set by round."""

    def draw(axes: Axes) -> None:
        _lines(axes, run, lambda r: None if r.accuracy is None else 100 * r.accuracy)
        axes.set_ylabel("accuracy, %")

    label = f"Lines: accuracy on the test set over the rounds, {_named(run)}"
    return svg("accuracy", label, _HALF, draw)


def drift_chart(run: Run) -> str:
    """How far devices moved from the round's model."""

    def draw(axes: Axes) -> None:
        _lines(axes, run, lambda r: r.drift)
        axes.set_ylabel("drift, ||y - x||")
        axes.set_ylim(bottom=0)

    label = f"Lines: mean drift of the devices over the rounds, {_named(run)}"
    return svg("drift", label, _HALF, draw)


def bytes_chart(run: Run) -> str:
    """Payload bytes by round, both ways, of the main curve."""

    def draw(axes: Axes) -> None:
        rounds = run.curves[0].rounds
        numbers = [r.round for r in rounds]
        up = [r.uplink_bytes / 1e3 for r in rounds]
        down = [r.downlink_bytes / 1e3 for r in rounds]
        axes.bar(numbers, up, width=0.72, color=MAIN, label="from devices")
        axes.bar(numbers, [-d for d in down], width=0.72, color=AWAY, label="to devices")
        axes.axhline(0, color=SOFT, linewidth=0.8)
        axes.set_ylabel("kB in a round")
        axes.set_xlabel("round")
        whole_rounds(axes)
        axes.yaxis.set_major_formatter(lambda value, _position: f"{abs(value):,.0f}")
        axes.legend(
            frameon=False, loc="lower right", ncols=2, bbox_to_anchor=(1.0, 1.0), borderpad=0
        )

    label = "Bars: kilobytes in each round, from devices upwards and to devices downwards"
    return svg("bytes", label, _HALF, draw)


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
    return svg("participation", label, (11.2, height), draw)


def _lines(axes: Axes, run: Run, value: Callable[[Any], float | None]) -> None:
    ends: list[tuple[float, float, str, str]] = []
    given = styles(curve.algorithm for curve in run.curves)
    for curve in _compared(run):
        points = [(r.round, v) for r in curve.rounds if (v := value(r)) is not None]
        if not points:
            continue
        style = given[curve.algorithm]
        axes.plot(*zip(*points, strict=True), **style)
        ends.append((*points[-1], shown(curve.algorithm), style["color"]))
    main = run.curves[0]
    if main.source == "live":
        points = [(r.round, v) for r in main.rounds if (v := value(r)) is not None]
        axes.plot(
            *zip(*points, strict=True),
            linestyle="none", marker="o", markersize=4.2, zorder=6,
            markerfacecolor=PAPER, markeredgecolor=given[main.algorithm]["color"],
            markeredgewidth=1.3, label=f"{shown(main.algorithm)}, live",
        )  # fmt: skip
        axes.legend(frameon=False, loc="best", handletextpad=0.2)
    label_ends(axes, ends)
    axes.set_xlabel("round")
    whole_rounds(axes)


def _compared(run: Run) -> Sequence[Curve]:
    simulated = [curve for curve in run.curves if curve.source == "simulated"]
    return simulated or run.curves


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
    main = styles([run.algorithm])[run.algorithm]["color"]
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
    main = styles([run.algorithm])[run.algorithm]["color"]
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
    whole_rounds(axes)


def _named(run: Run) -> str:
    return ", ".join(shown(curve.algorithm) for curve in _compared(run))
