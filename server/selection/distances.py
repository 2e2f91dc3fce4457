"""How unlike devices' data are, and who is whose near neighbour.

Distances are in [0, 1]: 0 between equal histograms, 1 where no bin is in both. They are rounded to
nine digits, so that what the last bit of a sum is on some machine decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kellet.server.selection.fleet import Told

__all__ = ["DISTANCES", "Neighbours", "hellinger", "jensen_shannon"]

F64 = NDArray[np.float64]
_BLOCK = 256  # rows at a time: their distances to 10,000 others are 20 MB
_DIGITS = 9


def hellinger(p: F64, q: F64) -> F64:
    """sqrt(1 - sum_b sqrt(p_b q_b)) of each row in ``p`` with each in ``q``: [len(p), len(q)]."""
    overlap = np.sqrt(p) @ np.sqrt(q).T
    return _root(1.0 - overlap)


def jensen_shannon(p: F64, q: F64) -> F64:
    """sqrt(H(m) - H(p)/2 - H(q)/2) with m = (p + q)/2 and H in bits: [len(p), len(q)].

    The square root of the divergence is a metric: Endres and Schindelin, "A new metric for
    probability distributions", IEEE Transactions on Information Theory 49(7), 2003.
    """
    mixed = np.zeros((len(p), len(q)))
    for column in range(p.shape[1]):
        mixed += _bits((p[:, column, None] + q[None, :, column]) / 2)
    apart = _bits(p).sum(axis=1)[:, None] / 2 + _bits(q).sum(axis=1)[None, :] / 2
    return _root(mixed - apart)


def _root(divergence: F64) -> F64:
    """Rounded first: a sum that should be 1 misses it by 1e-16, whose root is 1e-8."""
    root: F64 = np.sqrt(np.clip(np.round(divergence, _DIGITS), 0.0, 1.0))
    return root


def _bits(p: F64) -> F64:
    """-p log2 p, and 0 for 0."""
    bits: F64 = -p * np.log2(np.where(p > 0, p, 1.0))
    return bits


DISTANCES: Final[dict[str, Callable[[F64, F64], F64]]] = {
    "hellinger": hellinger,
    "jensen-shannon": jensen_shannon,
}


class Neighbours:
    """The graph of near neighbours among devices that told of their data, by their positions.

    Each has a radius: the distance of its ``k``-th nearest other, but no more than the mean
    distance of two devices; or ``threshold``, where that is above 0. Two are near neighbours where
    their distance is within both radii: each is among the other's nearest, those as near as the
    last included. So a rare kind of data is nobody's near neighbour for want of a nearer one, nor
    are two rare kinds each other's, and equal histograms are all treated alike.

    The distance of two devices is their labels'; where both share the columns as well, these make
    one half of it, all of the same weight. Memory: the shares, and a block of distances.
    """

    def __init__(self, told: Sequence[Told], kind: str, *, k: int, threshold: float = 0.0) -> None:
        self._measure = DISTANCES[kind]
        self._labels = np.array([_shares(each, 0) for each in told], ndmin=2)
        full = max((each.groups for each in told), key=len, default=())
        self._full = np.array([len(each.groups) == len(full) > 1 for each in told], bool)
        self._columns = [
            np.array([_shares(each, g) for each in told if len(each.groups) == len(full)])
            for g in range(1, len(full))
        ]
        self._radii = np.full(len(told), threshold if threshold else -1.0)
        if k > 0 and not threshold and len(told) > 1:
            self._radii = self._reach(len(told), min(k, len(told) - 1))

    def _reach(self, n: int, k: int) -> F64:
        """The distance of each one's k-th nearest other, or the mean of all if that is less."""
        found, total = np.empty(n), 0.0
        for start in range(0, n, _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, n))
            apart = self.distances(rows)
            total += float(apart.sum())
            apart[rows - start, rows] = np.inf
            found[rows] = np.partition(apart, k - 1, axis=1)[:, k - 1]
        return np.minimum(found, round(total / (n * (n - 1)), _DIGITS))

    def distances(self, rows: NDArray[np.int64]) -> F64:
        """How unlike these are to all: [len(rows), devices]."""
        apart = self._measure(self._labels[rows], self._labels)
        mine = self._full[rows]
        if self._columns and mine.any():
            place = np.cumsum(self._full) - 1  # of a device among those that share the columns
            own = place[rows[mine]]
            of_columns = sum(self._measure(each[own], each) for each in self._columns)
            both = np.ix_(mine, self._full)
            apart[both] = (apart[both] + of_columns / len(self._columns)) / 2
        return np.round(apart, _DIGITS)

    def near(self, device: int) -> NDArray[np.bool_]:
        """Whom this one is a near neighbour of; itself included, unless nobody has any."""
        apart = self.distances(np.array([device]))[0]
        within: NDArray[np.bool_] = apart <= np.minimum(self._radii, self._radii[device])
        return within


def _shares(told: Told, group: int) -> F64:
    """One group as float64, so that it sums to 1 as nearly as that can say."""
    start = sum(told.groups[:group])
    shares = np.frombuffer(told.shares, "<f4", told.groups[group], 4 * start).astype(np.float64)
    whole: F64 = shares / shares.sum()
    return whole
