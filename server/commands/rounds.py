"""Rounds as people read them: a table that grows, or a line each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kellet.sdk.console import Console

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["RoundLog", "megabytes", "who"]

_SHOWN = 12  # rounds in a live table
_NAMED = 16  # devices that are listed by name
_HEADINGS = ("round", "counted (asked)", "loss", "accuracy", "train", "drift", "up", "down")
_WIDTHS = (5, 19, 6, 8, 6, 6, 7, 7)  # 80 columns in all


class RoundLog:
    """The rounds of a run, told as they come.

    A round is told when it closes, or once its model is evaluated where ``evaluated``.
    Facts are those of an aggregator's ``round`` and ``evaluated`` reports.
    """

    def __init__(self, console: Console, *, evaluated: bool) -> None:
        self._console = console
        self._evaluated = evaluated
        self._headed = False
        self.rounds: dict[int, dict[str, Any]] = {}

    @property
    def last(self) -> dict[str, Any]:
        """Facts of the newest round; empty before the first."""
        return self.rounds[max(self.rounds)] if self.rounds else {}

    def traffic(self, facts: Mapping[str, Any]) -> dict[str, int]:
        """The bytes of this round alone; what ``facts`` has are totals since the process began."""
        before = self.rounds.get(facts["round"] - 1, {})
        return {
            f"round_{way}": facts[way] - before.get(way, 0)
            for way in ("uplink_bytes", "downlink_bytes")
        }

    def closed(self, facts: Mapping[str, Any]) -> None:
        """A round ended."""
        self.rounds[facts["round"]] = dict(facts)
        if not self._evaluated or facts["state"] != "closed":
            self._tell(facts["round"])

    def annotate(self, facts: Mapping[str, Any]) -> None:
        """A round's model was evaluated."""
        if facts["round"] in self.rounds:
            self.rounds[facts["round"]] |= facts
            self._tell(facts["round"])

    def table(self, title: str = "") -> Table:
        """The last rounds, for a live display."""
        from rich import box
        from rich.table import Table

        table = Table(
            box=box.SIMPLE_HEAD,
            title=title or None,
            title_justify="left",
            pad_edge=False,
            padding=(0, 1, 0, 0),
        )
        for index, (heading, width) in enumerate(zip(_HEADINGS, _WIDTHS, strict=True)):
            justify: Literal["left", "right"] = "left" if index == 1 else "right"
            table.add_column(heading, justify=justify, no_wrap=True, min_width=width)
        for number in sorted(self.rounds)[-_SHOWN:]:
            style = None if self.rounds[number]["state"] == "closed" else "yellow"
            table.add_row(*self._cells(number), style=style)
        return table

    def _tell(self, number: int) -> None:
        if self._console.json or self._console.live:
            return
        if not self._headed:
            self._headed = True
            self._console.say(_aligned(_HEADINGS))
        self._console.say(_aligned(self._cells(number)))

    def _cells(self, number: int) -> tuple[str, ...]:
        facts = self.rounds[number]
        accuracy = facts.get("accuracy")
        people = who(facts["counted"], facts["asked"])
        return (
            str(number),
            people if facts["state"] == "closed" else f"{people} abandoned",
            _number(facts.get("loss"), 4),
            "" if accuracy is None else f"{accuracy:.1%}",
            _number(facts["train_loss"], 4),
            _number(facts["drift"], 3),
            *map(megabytes, self.traffic(facts).values()),
        )


def who(counted: Sequence[str], asked: Sequence[str]) -> str:
    """The devices counted and, in brackets, those asked in vain; numbers where names are many.

    What all names begin with is left out: ``device-1 device-3 (device-2)`` is ``1 3 (2)``.
    """
    in_vain = sorted(set(asked) - set(counted), key=_natural)
    names = sorted(counted, key=_natural)
    if len(names) + len(in_vain) > _NAMED:
        return f"{len(names)}" + (f" ({len(in_vain)})" if in_vain else "")
    common = _shared_start([*names, *in_vain]).rstrip("0123456789")
    shown = " ".join(name.removeprefix(common) or name for name in names)
    if in_vain:
        shown += f" ({' '.join(name.removeprefix(common) or name for name in in_vain)})"
    return shown.strip()


def _shared_start(names: Sequence[str]) -> str:
    """What all names begin with."""
    first, last = min(names, default=""), max(names, default="")
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(letter for letter, _ in same)


def megabytes(count: float) -> str:
    """Bytes for people: kB below a megabyte, MB above."""
    return f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:.2f} MB"


def _natural(name: str) -> tuple[int, str]:
    return len(name), name


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _aligned(cells: Sequence[str]) -> str:
    return "  ".join(
        cell.ljust(width) if index == 1 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ).rstrip()
