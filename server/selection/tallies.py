"""How often each device was asked and counted, as the ledger's closed rounds say it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Tallies", "entropy"]


def entropy(times: Iterable[int]) -> float | None:
    """-sum p ln p / ln N with p_i = times_i / sum(times) over N devices: how evenly they had turns.

    1: all as often as each other. 0: one had them all. None where nobody had any, or N < 2.

    >>> entropy([3, 3, 3]), entropy([5, 0]), entropy([0, 0])
    (1.0, 0.0, None)
    """
    counts = list(times)
    total = sum(counts)
    if total == 0 or len(counts) < 2:
        return None
    shares = [n / total for n in counts if n]
    return max(0.0, min(1.0, -math.fsum(p * math.log(p) for p in shares) / math.log(len(counts))))


class Tallies:
    """The turns of all devices that ever had one. What is noted is in the ledger already.

    After a restart the same comes of noting the same rounds again, in any order.
    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.turn: dict[str, int] = {}

    def note(self, round_: int, summary: Mapping[str, Any]) -> None:
        """A round that ended, with its summary."""
        asked, counted = summary.get("asked", ()), summary.get("counted", ())
        self.asked.update(set(asked))
        self.counted.update(set(counted))
        for device in (*asked, *counted, *summary.get("missed", ())):
            self.turn[device] = max(round_, self.turn.get(device, 0))

    def fairness(self, enrolled: Iterable[str]) -> dict[str, float | None]:
        """The entropies over the devices that are enrolled, as rounds tell them."""
        names = list(enrolled)
        return {
            "asked_entropy": entropy(self.asked[name] for name in names),
            "counted_entropy": entropy(self.counted[name] for name in names),
        }
