"""Exact sums: integers on the grid 2^-48 in two 64-bit limbs.

A float sum depends on the order of its terms, on how many workers added them and
on where a run was interrupted. These do not: a value v becomes ``rint(v * 2^48)``,
is multiplied by an integer weight and added as an integer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.durable import ReadInParts
from kellet.sdk.heap import parts

__all__ = ["ExactSum", "Limbs", "control_gap", "gap_between"]

GRID = 2.0**48


class ExactSum:
    """The sum of weighted vectors of length n. 16 bytes an entry, whatever was added."""

    def __init__(self, n: int) -> None:
        self.lo: NDArray[np.uint64] = kernels.aligned(n, np.uint64)
        self.hi: NDArray[np.int64] = kernels.aligned(n, np.int64)

    def __len__(self) -> int:
        return len(self.lo)

    def add(self, values: NDArray[Any], weight: int = 1) -> None:
        """Add ``values`` (float [n], each below 2^14) times ``weight`` (below 2^31)."""
        if values.dtype == np.float32:
            kernels.accumulate(self.lo, self.hi, values, weight)
        else:
            kernels.add_scaled(self.lo, self.hi, kernels.to_grid(values), weight)

    def add_grid(self, q: NDArray[np.int64], weight: int = 1) -> None:
        """Add int64 values that are on the grid already."""
        kernels.add_scaled(self.lo, self.hi, q, weight)

    def merge(self, other: ExactSum) -> None:
        """Add another sum of the same length."""
        self.lo += other.lo
        self.hi += other.hi
        self.hi += self.lo < other.lo  # the carry

    def mean(self, count: int, part: slice = slice(None)) -> NDArray[np.float64]:
        """The sum divided by ``count``, float64 [n]; zeros where ``count`` is 0.

        With a ``part``, of these entries alone.
        """
        lo, hi = self.lo[part], self.hi[part]
        if count == 0:
            return np.zeros(len(lo))
        mean = kernels.limbs_to_float64(lo, hi)
        mean /= count * GRID
        return mean

    def integers(self) -> list[int]:
        """The exact sums in grid steps, as Python integers."""
        return [int(h) * 2**64 + int(low) for low, h in zip(self.lo, self.hi, strict=True)]

    @property
    def limbs(self) -> Limbs:
        """What ``dump`` gives, read in parts."""
        return Limbs(self)

    def dump(self) -> bytes:
        """The limbs, little-endian: all low ones, then all high ones."""
        return self.limbs[:]

    @classmethod
    def load(cls, raw: ReadInParts) -> Self:
        """The inverse of ``dump``."""
        n = len(raw) // 16
        out = cls(n)
        for part in parts(n):
            low = slice(8 * part.start, 8 * part.stop)
            out.lo[part] = np.frombuffer(raw[low], "<u8")
            out.hi[part] = np.frombuffer(raw[8 * n + low.start : 8 * n + low.stop], "<i8")
        return out


class Limbs:
    """The bytes of a sum as it stands, made where they are read."""

    def __init__(self, total: ExactSum) -> None:
        limbs = (total.lo.astype("<u8", copy=False), total.hi.astype("<i8", copy=False))
        self._low, self._high = (each.view(np.uint8) for each in limbs)

    def __len__(self) -> int:
        return 2 * len(self._low)

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(len(self))
        half = len(self._low)
        high = self._high[max(start - half, 0) : max(stop - half, 0)]
        return self._low[start:stop].tobytes() + high.tobytes()


def control_gap(control: ExactSum, committed: Iterable[NDArray[np.int64]]) -> int:
    """max |C - sum(c_i)| over the entries, in steps of the grid: the invariant's distance.

    ``committed``: every member's control as counted, int64 [n_train] each.
    """
    total = ExactSum(len(control))
    for c_i in committed:
        total.add_grid(c_i)
    return gap_between(control, total)


def gap_between(control: ExactSum, total: ExactSum) -> int:
    """max |C - sum(c_i)| over the entries, where ``total`` is that sum."""
    apart = np.flatnonzero((total.lo != control.lo) | (total.hi != control.hi))
    if not len(apart):
        return 0
    ours, theirs = control.integers(), total.integers()
    return max(abs(ours[i] - theirs[i]) for i in apart)
