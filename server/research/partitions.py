"""Ways to share out a pool, as a command names them: ``dirichlet:0.1``, ``natural``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.errors import DataError, UsageError
from kellet.server import partition as ways
from kellet.server.research.data import Pool

__all__ = ["KINDS", "LEAST", "Partition", "parse"]

LEAST = 10  # samples of a client, where a way leaves that open

I64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Partition:
    """How a pool becomes clients. Raises ``UsageError`` for what no way takes.

    ``kind``: one of ``KINDS``. ``amount``: its number, alpha or percent or labels; None
    for natural. ``clients``: how many; None for natural, where each owner is one.
    ``least``: samples that each client has at least, where the way is drawn (dirichlet,
    quantity, feature). ``column``: the feature of a feature skew, an index into a flat
    sample; None for the sum of a sample's values.
    """

    kind: str
    amount: float | None = None
    clients: int | None = None
    least: int = LEAST
    column: int | None = None

    def __post_init__(self) -> None:
        way = KINDS.get(self.kind)
        if way is None:
            raise _refused(self.kind, "there is no such partition")
        if way.amount and self.amount is None:
            raise _refused(self.kind, f"it wants its {way.amount}")
        if not way.amount and self.amount is not None:
            raise _refused(f"{self.kind}:{self.amount:g}", "it has no number")
        if way.amount == "labels" and self.amount != int(self.amount or 0):
            raise _refused(f"{self.kind}:{self.amount:g}", "labels are counted")
        if way.amount and self.clients is None:
            raise UsageError(
                "clients = None",
                why=f"{self} shares samples out among a number of clients",
                repair="say how many",
            )
        # What makes no difference is not kept: equal partitions are equal values.
        if not way.drawn:
            object.__setattr__(self, "least", LEAST)
        if self.kind != "feature":
            object.__setattr__(self, "column", None)
        if not way.amount:
            object.__setattr__(self, "clients", None)

    def of(self, pool: Pool, seed: int) -> list[I64]:
        """The clients' samples: positions in the pool, ascending, an array a client.

        Raises ``UsageError`` where the pool has too few, ``DataError`` where its labels
        or owners do not serve.
        """
        try:
            return KINDS[self.kind].share(self, pool, seed)
        except UsageError as error:
            number = re.match(r"(alpha|percent|each) = ", error.what)
            if number is None:
                raise
            raise UsageError(
                f"partition = {self}", why=f"its number: {error.why}", repair="change it"
            ) from None

    def __str__(self) -> str:
        return self.kind if self.amount is None else f"{self.kind}:{self.amount:g}"


def parse(text: str) -> tuple[str, float | None]:
    """(kind, amount) of ``dirichlet:0.5``; the amount is None where there is none."""
    kind, colon, number = text.partition(":")
    if kind not in KINDS:
        raise _refused(text, "there is no such partition")
    if not colon:
        return kind, None
    try:
        return kind, float(number)
    except ValueError:
        raise _refused(text, f"{number!r} is not a number") from None


@dataclass(frozen=True)
class _Way:
    """``amount``: what its number is called, empty where it has none. ``drawn``: it has a least."""

    amount: str
    share: Callable[[Partition, Pool, int], list[I64]]
    drawn: bool = False


def _dirichlet(p: Partition, pool: Pool, seed: int) -> list[I64]:
    return ways.dirichlet(pool.y, *_numbers(p), seed=seed, least=p.least)


def _similarity(p: Partition, pool: Pool, seed: int) -> list[I64]:
    return ways.similarity(pool.y, *_numbers(p), seed=seed)


def _by_label(p: Partition, pool: Pool, seed: int) -> list[I64]:
    clients, labels = _numbers(p)
    return ways.by_label(pool.y, clients, int(labels), seed=seed)


def _quantity(p: Partition, pool: Pool, seed: int) -> list[I64]:
    return ways.quantity(len(pool.y), *_numbers(p), seed=seed, least=p.least)


def _feature(p: Partition, pool: Pool, seed: int) -> list[I64]:
    values = _values(pool.x, p.column)
    return ways.feature_skew(values, *_numbers(p), seed=seed, least=p.least)


def _natural(p: Partition, pool: Pool, seed: int) -> list[I64]:
    if pool.owners is None:
        raise DataError(
            f"{pool.name} does not say whose its samples are",
            why="a natural partition has a client for each owner",
            repair="return (x, y, owners) from the pool's function, or choose another partition",
        )
    return ways.natural(pool.owners)


KINDS: dict[str, _Way] = {
    "dirichlet": _Way("alpha", _dirichlet, drawn=True),
    "similarity": _Way("percent", _similarity),
    "by-label": _Way("labels", _by_label),
    "quantity": _Way("alpha", _quantity, drawn=True),
    "feature": _Way("alpha", _feature, drawn=True),
    "natural": _Way("", _natural),
}


def _numbers(p: Partition) -> tuple[int, float]:
    assert p.clients is not None
    assert p.amount is not None
    return p.clients, p.amount


def _values(x: NDArray[Any], column: int | None) -> NDArray[np.float64]:
    """One number a sample: a column, or the sum of all, added one after the other.

    NumPy's own sum goes by blocks that depend on the processor; this gives the same bits on each.
    """
    flat = x.reshape(len(x), -1)
    if column is not None:
        if not 0 <= column < flat.shape[1]:
            raise UsageError(
                f"feature = {column}",
                why=f"a sample has {flat.shape[1]} values",
                repair=f"name a column from 0 to {flat.shape[1] - 1}",
            )
        return flat[:, column].astype(np.float64)
    total = np.zeros(len(x))
    for j in range(flat.shape[1]):
        total += flat[:, j]
    return total


def _refused(text: str, why: str) -> UsageError:
    known = ", ".join(
        f"{kind}:{way.amount.upper()}" if way.amount else kind for kind, way in KINDS.items()
    )
    return UsageError(f"partition = {text}", why=why, repair=f"choose one of {known}")
