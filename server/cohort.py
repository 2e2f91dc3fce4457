"""Who takes part in an open round: willing, asked, counted, gone."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

__all__ = ["Cohort"]


@dataclass
class Cohort:
    """One round's devices: asked, counted, gone.

    ``chosen`` limits the round to these devices; ``capacity`` is how many may be at
    work or counted at once (``places``, or by over-selection). A device that is gone (its link, or
    it said so) frees its place, and has it again when it returns: hints decide who is asked, never
    what is counted. ``declined``: may not train now; the round does not wait for them.
    ``late``: whose update of an earlier announcement was counted in this round; they may train
    for this one all the same.

    While it is ``gathering`` nobody is asked: who is willing is ``waiting``, until some are drawn.
    """

    target: int
    over_select: float
    chosen: frozenset[str] | None
    places: int = 0
    gathering: bool = False
    asked: dict[str, None] = field(default_factory=dict)
    counted: dict[str, None] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    declined: set[str] = field(default_factory=set)
    waiting: dict[str, None] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)

    @property
    def updates(self) -> int:
        """How many were counted in this round."""
        return len(self.counted) + len(self.late)

    @property
    def capacity(self) -> int:
        return self.places or math.ceil(self.target * self.over_select)

    @property
    def free(self) -> int:
        """Places that nobody has."""
        at_work = len(self.asked.keys() - self.gone - self.counted.keys())
        # Late updates take no place: who sent one is free to train, and the quorum may need it.
        return max(0, self.capacity - at_work - len(self.counted))

    @property
    def missed(self) -> list[str]:
        """Who was chosen, and neither came nor was counted."""
        return sorted((self.chosen or frozenset()) - self.asked.keys())

    def join(self, device: str) -> bool:
        """Whether a willing device is asked to train."""
        if device in self.counted or (self.chosen is not None and device not in self.chosen):
            return False
        self.declined.discard(device)
        if self.gathering:
            self.waiting[device] = None
            return False
        newcomer = device not in self.asked or device in self.gone
        if newcomer and self.chosen is None and not self.free:
            return False
        self.gone.discard(device)
        self.asked[device] = None
        return True

    def answered(self, reachable: int) -> bool:
        """Whether so many devices, all that there are, have said if they are willing."""
        return len(self.waiting) + len(self.declined) + len(self.counted) >= reachable

    def draw(self, devices: Iterable[str]) -> list[str]:
        """The gathering is over: these are asked, as far as they are still waiting."""
        self.gathering = False
        drawn = [device for device in devices if device in self.waiting and self.join(device)]
        self.waiting.clear()
        return drawn

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
        self.waiting.pop(device, None)
        if device in self.asked:
            self.gone.add(device)

    def count_late(self, device: str) -> None:
        self.late.append(device)

    def count(self, device: str) -> None:
        self.asked[device] = None
        self.gone.discard(device)
        self.declined.discard(device)
        self.waiting.pop(device, None)
        self.counted[device] = None
