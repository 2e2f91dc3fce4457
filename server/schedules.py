"""How the devices' learning rate changes from round to round.

A schedule gives a factor of ``local_lr`` for each round. The aggregator announces the
product, rounded to float32, as the round's ``local_lr``: devices need not know of it. Within a
round ``lr_decay`` goes on as it is. Factors lie in (0, 1], so that what was checked of the
algorithm holds in every round.

>>> [parse("warmup:2,step:3:0.5").factor(round_) for round_ in range(1, 8)]
[0.5, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.errors import UsageError

__all__ = ["CONSTANT", "Schedule", "parse"]

_FORMS = "exp:DECAY, step:EVERY:FACTOR, cosine:ROUNDS[:LEAST] or warmup:ROUNDS"
_LEAST = 1e-6  # of a factor: a rate must stay a rate


@dataclass(frozen=True)
class Schedule:
    """A factor for each round, from 1; ``text`` is what ``parse`` reads."""

    text: str = ""

    def __post_init__(self) -> None:
        _parts(self.text)

    def factor(self, round_: int) -> float:
        """In (0, 1]: the product over the schedule's parts."""
        found = math.prod(part(round_ - 1) for part in _parts(self.text))
        return max(found, _LEAST)

    def at(self, algorithm: FedAvg, round_: int) -> FedAvg:
        """The algorithm as it is announced in that round."""
        return algorithm.changed(local_lr=algorithm.local_lr * self.factor(round_))


def parse(text: str) -> Schedule:
    """Read a schedule, one or more of these joined by commas; empty for a constant rate.

    ``exp:DECAY``: DECAY^r, r rounds after the first. ``step:EVERY:FACTOR``: FACTOR once more
    after EVERY rounds. ``cosine:ROUNDS[:LEAST]``: from 1 to LEAST (0.01) over so many rounds,
    along half a cosine, and LEAST from then on. ``warmup:ROUNDS``: linearly to 1. Raises
    ``UsageError`` for anything else.
    """
    return Schedule(text)


def _parts(text: str) -> list[Callable[[int], float]]:
    try:
        return [_part(*part.split(":")) for part in text.split(",") if part]
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"schedule {text!r}",
            why=str(error)
            if isinstance(error, _Wrong)
            else "a number is missing, is none, or is one too many",
            repair=f"write {_FORMS}; a comma joins them",
        ) from None


def _part(name: str, *values: str) -> Callable[[int], float]:
    """One part: the factor ``r`` rounds after the first."""
    match name:
        case "exp":
            (decay,) = map(_share, values)
            return lambda r: decay**r
        case "step":
            every, factor = values
            after, drop = _count(every), _share(factor)
            return lambda r: drop ** (r // after)
        case "cosine":
            text, *others = values or ("",)
            rounds, least = _count(text), _share(*(others or ["0.01"]))
            return lambda r: least + (1 - least) * (1 + math.cos(math.pi * min(r / rounds, 1))) / 2
        case "warmup":
            (text,) = values
            last = _count(text)
            return lambda r: min((r + 1) / last, 1.0)
    raise _Wrong(f"there is no {name!r}")


class _Wrong(ValueError):
    """In our words."""


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise _Wrong(f"{text} rounds")
    return count


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share <= 1:
        raise _Wrong(f"{text} is not above 0 and at most 1")
    return share


CONSTANT = Schedule()
