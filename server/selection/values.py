"""Who is asked to train in a round: selections that look at no data (docs/selection.md)."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from kellet.sdk.errors import require
from kellet.sdk.plan import Manifest
from kellet.sdk.protocol.histograms import Question
from kellet.server.selection.fleet import Candidate, Fleet

__all__ = ["Available", "Draw", "FirstCome", "Schedule", "Uniform", "Weighted", "by_turn", "lot"]

MOST_DEVICES = 2**31
LONGEST_WINDOW = 3600.0  # s


def lot(seed: int, round_: int, device: str) -> bytes:
    """The lot of a device in a round, 32 bytes: the same on every machine, and no two alike."""
    return hashlib.sha256(f"{seed}/{round_}/{device}".encode()).digest()


def by_turn(
    candidates: Iterable[Candidate], seed: int, round_: int, *, cycle: int = 1
) -> list[Candidate]:
    """Who has waited longest first, of equals who was asked least, of equals by their lots.

    Equals are those whose last turns were in the same of the ``cycle`` rounds that follow each
    other: by single rounds the devices of one round would be those of a later one again.
    """
    return sorted(
        candidates,
        key=lambda c: ((c.turn - 1) // cycle, c.asked, lot(seed, round_, c.device)),
    )


@dataclass(frozen=True)
class FirstCome:
    """Whoever is willing first, up to the target times the over-selection factor.

    Devices with a quick link are asked in every round, and others never: see ``Available``.
    """

    def choose(self, round_: int, fleet: Fleet) -> frozenset[str] | None:
        return None


@dataclass(frozen=True)
class Schedule:
    """The devices that a function of (round, enrolled devices) names."""

    function: Callable[[int, Sequence[str]], Collection[str]]

    def choose(self, round_: int, fleet: Fleet) -> frozenset[str] | None:
        return frozenset(self.function(round_, fleet.names)) & frozenset(fleet.names)


@dataclass(frozen=True)
class Draw(ABC):
    """What selections have in common that draw a number of devices.

    ``size``: devices that are asked. ``enough``: counted updates at which the round closes, 0
    for all that are asked; with fewer the slowest of a round are never in it. ``seed``: of the
    lots, which decide wherever nothing else does.

    ``window``: 0 draws among the enrolled when the round is announced, and the round waits for
    those who were drawn, wherever they are. Above 0 it is drawn, so many seconds after the
    announcement, among those who said by then that they are willing; sooner where all have
    answered. Places that are left go to who comes later.
    """

    size: int
    seed: int = 0
    enough: int = 0
    window: float = 0.0

    def __post_init__(self) -> None:
        require(1 <= self.size < MOST_DEVICES, "size", self.size, "1 to 2^31 - 1")
        require(0 <= self.enough <= self.size, "enough", self.enough, f"0 to size, {self.size}")
        require(
            0 <= self.window <= LONGEST_WINDOW,
            "window",
            self.window,
            f"0 to {LONGEST_WINDOW:.0f} seconds",
        )

    @property
    def target(self) -> int:
        """The counted updates at which a round closes, where as many devices take part."""
        return self.enough or self.size

    def question(self, manifest: Manifest) -> Question | None:
        """What it wants to know of the devices' data, which is announced; None for nothing."""
        return None

    def choose(self, round_: int, fleet: Fleet) -> frozenset[str] | None:
        return None if self.window else frozenset(self.pick(round_, fleet, self.size))

    @abstractmethod
    def pick(self, round_: int, fleet: Fleet, places: int) -> list[str]:
        """At most so many devices of ``fleet``, in the order in which they are drawn."""


@dataclass(frozen=True)
class Uniform(Draw):
    """Uniformly at random without replacement: each device has the probability size / N."""

    def pick(self, round_: int, fleet: Fleet, places: int) -> list[str]:
        return sorted(fleet.names, key=lambda device: lot(self.seed, round_, device))[:places]


@dataclass(frozen=True)
class Weighted(Draw):
    """One after another without replacement, each time in proportion to n_i among those left.

    n_i is that of the last counted update. Who has none yet counts as the mean of those that are
    known. Where two devices differ by how much they are drawn they do so by n_i already:
    weight their updates uniformly, or samples count twice (docs/selection.md).

    A device's key is -ln(u)/n_i with u uniform by its lot; the smallest keys are drawn, which is
    that law exactly: Efraimidis and Spirakis, "Weighted random sampling with a reservoir",
    Information Processing Letters 97(5), 2006.
    """

    def pick(self, round_: int, fleet: Fleet, places: int) -> list[str]:
        known = {c.device: c.samples for c in fleet.candidates()}
        counts = [n for n in known.values() if n]
        mean = sum(counts) / len(counts) if counts else 1.0

        def key(device: str) -> tuple[float, str]:
            u = (int.from_bytes(lot(self.seed, round_, device)[:8], "big") + 1) / 2**64
            return -math.log(u) / (known[device] or mean), device

        return sorted(fleet.names, key=key)[:places]


@dataclass(frozen=True)
class Available(Draw):
    """Who is willing now, and has waited longest since its last turn, of equals the least asked.

    A device that was never asked comes first. The time since the last turn goes before the number
    of turns: who enrols late, or was away, need not make up for all that it missed, round after
    round. Rounds go in cycles of as many as it takes to ask all N that are willing: in each of
    them all have a turn, in an order of its own, and none waits for 2 ceil(N / size) rounds.
    """

    window: float = 1.0

    def pick(self, round_: int, fleet: Fleet, places: int) -> list[str]:
        cycle = max(1, math.ceil(len(fleet.names) / self.size))
        waited = by_turn(fleet.candidates(), self.seed, round_, cycle=cycle)
        return [candidate.device for candidate in waited[:places]]
