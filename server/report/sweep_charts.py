"""The charts of a sweep's report: curves with their mean and range over the seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kellet.server.report.drawing import label_ends, styles, svg, whole_rounds
from kellet.server.research.rows import RoundRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Line", "chart"]

_SIZE = (5.4, 3.1)  # inches; the page scales them


class Line(Struct, frozen=True):
    """One line of a chart: a name, and the rounds of each run behind it."""

    name: str
    runs: Sequence[Sequence[RoundRow]]


def chart(
    name: str,
    lines: Sequence[Line],
    value: str,
    *,
    label: str,
    by: str = "round",
    scale: float = 1.0,
    given: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """The mean of a row's ``value`` over the runs of each line, and their range as a band; SVG.

    ``by``: ``round``, or ``mb``, the payload that had travelled in both directions, mean over the
    runs as well. Rounds that were not judged are passed over. ``given``: the styles by line.
    """
    drawn = given or styles(line.name for line in lines)

    def draw(axes: Axes) -> None:
        ends = []
        for line in lines:
            places, means, least, most = _points(line, value, by)
            if not places:
                continue
            means, least, most = ([scale * v for v in some] for some in (means, least, most))
            style = drawn[line.name]
            axes.plot(places, means, **style)
            axes.fill_between(
                places, least, most, color=style["color"], alpha=0.14, linewidth=0, zorder=2
            )
            ends.append((places[-1], means[-1], line.name, str(style["color"])))
        axes.set_ylabel(label)
        axes.set_xlabel("round" if by == "round" else "MB, both directions")
        if by == "round":
            whole_rounds(axes)
        label_ends(axes, ends)

    names = ", ".join(line.name for line in lines)
    alt = f"Lines with bands: {label} by {by}, mean and range over the seeds, {names}"
    return svg(name, alt, _SIZE, draw)


def _points(
    line: Line, value: str, by: str
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Places, means, least and greatest, for each round in which all runs have the value."""
    rounds: dict[int, list[tuple[float, float]]] = {}
    place: Callable[[RoundRow], float] = (
        (lambda row: row.round) if by == "round" else (lambda row: row.up_mb + row.down_mb)
    )
    for run in line.runs:
        for row in run:
            found = getattr(row, value)
            if found is not None:
                rounds.setdefault(row.round, []).append((place(row), found))
    whole = [rounds[r] for r in sorted(rounds) if len(rounds[r]) == len(line.runs)]
    values = [[v for _, v in some] for some in whole]
    return (
        [fmean(p for p, _ in some) for some in whole],
        [fmean(some) for some in values],
        [min(some) for some in values],
        [max(some) for some in values],
    )
