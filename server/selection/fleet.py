"""What a selection knows of the devices that it chooses among."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

__all__ = ["Candidate", "Fleet", "Selection", "Told"]


@dataclass(frozen=True, slots=True)
class Told:
    """What a device told of its data. ``shares``: float32, little-endian, group after group.

    ``groups``: the bins of each, the labels' first, then the columns' where it shares those.
    """

    shares: bytes
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One device, as the ledger knows it.

    ``samples``: n_i of its last counted update, None before the first. ``turn``: the last round
    that it was asked in (or chosen for, and did not come), 0 for none. ``asked`` and ``counted``:
    in how many rounds. ``told``: of its data, None for nothing.
    """

    device: str
    samples: int | None = None
    turn: int = 0
    asked: int = 0
    counted: int = 0
    told: Told | None = None


@dataclass(frozen=True)
class Fleet:
    """The devices that may be asked. ``names``: ascending; ``look``: what is known of one."""

    names: Sequence[str]
    look: Callable[[str], Candidate] = Candidate

    def candidates(self) -> list[Candidate]:
        """All of them, in the order of their names."""
        return [self.look(name) for name in self.names]

    def among(self, devices: Iterable[str]) -> Fleet:
        """The part of the fleet that these are."""
        wanted = frozenset(devices)
        return replace(self, names=[name for name in self.names if name in wanted])


class Selection(Protocol):
    """Chooses a round's devices among the enrolled, or (None) leaves it to who comes.

    It is a value: what it answers depends on its arguments and settings alone. A user's own is
    any object with this method.
    """

    def choose(self, round_: int, fleet: Fleet) -> frozenset[str] | None: ...
