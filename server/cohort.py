"""Who is asked to train in a round."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Cohort", "FirstCome", "Sample", "Schedule", "Selection"]


class Selection(Protocol):
    """Chooses a round's devices among the enrolled, or (None) leaves it to who comes."""

    def choose(self, round_: int, members: Sequence[str]) -> frozenset[str] | None: ...


@dataclass(frozen=True)
class FirstCome:
    """Whoever is willing first, up to the target times the over-selection factor."""

    def choose(self, round_: int, members: Sequence[str]) -> frozenset[str] | None:
        return None


@dataclass(frozen=True)
class Sample:
    """``size`` devices uniformly at random among the enrolled, by seed and round."""

    size: int
    seed: int = 0

    def choose(self, round_: int, members: Sequence[str]) -> frozenset[str] | None:
        def lot(device: str) -> bytes:
            return hashlib.sha256(f"{self.seed}/{round_}/{device}".encode()).digest()

        return frozenset(sorted(members, key=lot)[: self.size])


@dataclass(frozen=True)
class Schedule:
    """The devices that a function of (round, enrolled devices) names."""

    function: Callable[[int, Sequence[str]], Collection[str]]

    def choose(self, round_: int, members: Sequence[str]) -> frozenset[str] | None:
        return frozenset(self.function(round_, members)) & frozenset(members)


@dataclass
class Cohort:
    """One round's devices: asked, counted, gone.

    ``chosen`` limits the round to these devices; ``capacity`` is how many may be at
    work or counted at once. A device that is gone (its link, or it said so) frees
    its place, and has it again when it returns: hints decide who is asked, never what
    is counted. ``declined``: may not train now; the round does not wait for them.
    ``late``: whose update of an earlier announcement was counted in this round; they may train
    for this one all the same.
    """

    target: int
    over_select: float
    chosen: frozenset[str] | None
    asked: dict[str, None] = field(default_factory=dict)
    counted: dict[str, None] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    declined: set[str] = field(default_factory=set)
    late: list[str] = field(default_factory=list)

    @property
    def updates(self) -> int:
        """How many were counted in this round."""
        return len(self.counted) + len(self.late)

    @property
    def capacity(self) -> int:
        return math.ceil(self.target * self.over_select)

    def join(self, device: str) -> bool:
        """Whether a willing device is asked to train."""
        if device in self.counted or (self.chosen is not None and device not in self.chosen):
            return False
        if device not in self.asked or device in self.gone:
            at_work = len(self.asked.keys() - self.gone - self.counted.keys())
            # Late updates take no place: who sent one is free to train, and the quorum may need it.
            if self.chosen is None and at_work + len(self.counted) >= self.capacity:
                return False
        self.gone.discard(device)
        self.declined.discard(device)
        self.asked[device] = None
        return True

    def decline(self, device: str) -> None:
        """The device may not train now. It may join later all the same."""
        if device not in self.counted:
            self.lost(device)
            self.declined.add(device)

    def complete(self, quorum: int, members: Collection[str]) -> bool:
        """Whether nothing is worth waiting for.

        The target is reached; or the quorum is, and whoever else belongs to the round
        (the chosen ones, or all ``members``) has declined.
        """
        if self.updates and self.updates >= self.target:
            return True
        awaited = self.chosen if self.chosen is not None else members
        nobody = self.declined and self.counted.keys() | self.declined >= set(awaited)
        return bool(nobody) and self.updates >= quorum

    def lost(self, device: str) -> None:
        """A hint that the device will not deliver."""
        if device in self.asked:
            self.gone.add(device)

    def count_late(self, device: str) -> None:
        self.late.append(device)

    def count(self, device: str) -> None:
        self.asked[device] = None
        self.gone.discard(device)
        self.declined.discard(device)
        self.counted[device] = None
