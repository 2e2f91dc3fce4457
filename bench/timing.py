"""The clock: contenders take turns, so that the machine's noise meets all of them alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from time import perf_counter
from typing import Any

from bench.results import Spread

__all__ = ["Contender", "Turns", "ratios", "repeated", "spread"]

BATCH = 200e-6  # seconds: short calls are timed many at a time
FASTEST_LOOPS = 200_000
WARM = 0.004  # a call longer than this finds no more in the caches for having just been run
TOO_SLOW = 0.5
MOST_ROUNDS, FEWEST_ROUNDS = 40, 5


def repeated(call: Callable[[], Any]) -> Callable[[int], None]:
    """Return what runs a call so many times."""

    def run(count: int) -> None:
        for _ in repeat(None, count):
            call()

    return run


@dataclass
class Contender:
    """One of those compared: ``run(count)`` makes count calls, inside ``scope()``."""

    run: Callable[[int], None]
    scope: Callable[[], AbstractContextManager[Any]] = nullcontext
    count: int = 1
    rounds: int = 0
    warms: bool = True
    seconds: dict[int, float] = field(default_factory=dict)  # a call's, by round

    def calibrate(self, budget: float) -> float:
        """Choose how many calls a batch has and how many rounds the budget allows."""
        with self.scope():
            self.run(1)  # compiles, where something is compiled
            took = self._timed(1)
            if took < BATCH:
                took = min(took, self._timed(max(1, int(BATCH / 4 / max(took, 1e-8)))))
        self.count = min(FASTEST_LOOPS, max(1, round(BATCH / took)))
        self.warms = took < WARM
        batch = took * (self.count + self.warms)
        self.rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, int(budget / batch)))
        return took

    def _timed(self, count: int) -> float:
        start = perf_counter()
        self.run(count)
        return (perf_counter() - start) / count

    def warm(self) -> None:
        """Bring what belongs to this contender back into the caches."""
        if self.warms:
            self.run(1)

    def take(self, turn: int) -> None:
        """Run and time one batch."""
        with self.scope():
            self.warm()
            self.seconds[turn] = self._timed(self.count)


class Turns:
    """Ours and the others, in turn. pytest-benchmark times ours and calls ``before`` each time."""

    def __init__(self, ours: Contender, others: dict[str, Contender], budget: float) -> None:
        self.ours = ours
        self.others = dict(others)
        self.left_out: dict[str, str] = {}
        ours.calibrate(budget)
        for name, contender in others.items():
            took = contender.calibrate(budget)
            if took > TOO_SLOW:
                self.left_out[name] = f"a call takes {took:.1f} s"
                del self.others[name]
        self.rounds = max(c.rounds for c in (ours, *self.others.values()))
        self._turn = 0

    def before(self) -> None:
        """Let the others have their turn, each starting one place later than the last time."""
        order = list(self.others.values())
        first = self._turn % max(1, len(order))
        for contender in order[first:] + order[:first]:
            due, total = contender.rounds, self.rounds
            if (self._turn + 1) * due // total > self._turn * due // total:
                contender.take(self._turn)
        self._turn += 1
        self.ours.warm()

    def batch(self) -> None:
        """Run ours once, as often as a batch has calls: what pytest-benchmark times."""
        self.ours.run(self.ours.count)

    def finish(self, seconds: Sequence[float]) -> None:
        """Take ours from pytest-benchmark: the seconds of each round's batch."""
        self.ours.seconds = {i: took / self.ours.count for i, took in enumerate(seconds)}


def spread(values: Sequence[float]) -> Spread:
    """Return the least, the median and the greatest."""
    return Spread(min(values), statistics.median(values), max(values))


def ratios(other: Contender, ours: Contender) -> Spread:
    """Return how many times longer the other takes, by rounds in which both were timed."""
    return spread([took / ours.seconds[turn] for turn, took in other.seconds.items()])
