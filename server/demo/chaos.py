"""Who is killed when, and when they come back: decided by a seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable

__all__ = ["Chaos"]

FIRST_ROUND = 2  # in this round somebody is killed for certain
PROBABILITY = 0.6  # in each later one
AWAY = (0.2, 1.5)  # s until a killed device is started again


class Chaos:
    """Plans kills and restarts; it touches no process and reads no clock.

    ``most_down`` devices are down at once at most. A kill comes at any moment of a
    round: while a device asks, fetches, trains, uploads or rests.
    """

    def __init__(self, devices: Iterable[str], seed: int, *, most_down: int) -> None:
        self._random = random.Random(f"kellet chaos {seed}")
        self._up = sorted(devices)
        self._down: list[tuple[float, str]] = []  # a heap by the time of return
        self._planned: list[tuple[float, str]] = []  # a heap by the time of the kill
        self._most_down = most_down
        self._opened: float | None = None
        self._lasted = 0.5

    def round_opened(self, number: int, now: float) -> None:
        """A round begins; perhaps somebody will not see its end."""
        if self._opened is not None:
            self._lasted = 0.5 * self._lasted + 0.5 * (now - self._opened)
        self._opened = now
        chance = self._random.random()
        if number < FIRST_ROUND or (number > FIRST_ROUND and chance > PROBABILITY):
            return
        away = len(self._down) + len(self._planned)
        candidates = [d for d in self._up if d not in {name for _, name in self._planned}]
        if away >= self._most_down or not candidates:
            return
        victim = self._random.choice(candidates)
        at = now + self._random.uniform(0.0, self._lasted)
        heapq.heappush(self._planned, (at, victim))

    def kills(self, now: float) -> list[str]:
        """Whom to kill now."""
        victims = []
        while self._planned and self._planned[0][0] <= now:
            _, victim = heapq.heappop(self._planned)
            self._up.remove(victim)
            heapq.heappush(self._down, (now + self._random.uniform(*AWAY), victim))
            victims.append(victim)
        return victims

    def returns(self, now: float) -> list[str]:
        """Whom to start again now."""
        back = []
        while self._down and self._down[0][0] <= now:
            _, device = heapq.heappop(self._down)
            self._up = sorted([*self._up, device])
            back.append(device)
        return back

    def calm(self) -> list[str]:
        """No more kills; whom to start again at once."""
        self._planned.clear()
        return self.returns(float("inf"))

    @property
    def wake(self) -> float:
        """When there is something to do; infinity where there is not."""
        return min(
            (heap[0][0] for heap in (self._planned, self._down) if heap), default=float("inf")
        )
