"""The exact sums and reductions, compiled by Numba. ``reference`` is their specification.

Numba takes mixed signed and unsigned operands, and products of two uint32, to
wider types: every integer below is cast back where that would happen.
"""

# ruff: noqa: PLR0917 - a kernel takes its arguments by position, in C too

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kellet.kernels._jit import inlined, jit
from kellet.kernels.hash import INDEX_FACTOR
from kellet.kernels.rounding import hashed
from kellet.kernels.table import GRID_BITS, GRID_LIMIT

__all__ = [
    "accumulate",
    "accumulate_int8",
    "add_scaled",
    "control_shift",
    "derived_delta_c",
    "from_grid",
    "limbs_to_float64",
    "linear_digest",
    "off_grid",
    "squares_of_blocks",
    "sum_of_squares",
    "to_grid",
]

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

TO_GRID = 2.0**GRID_BITS
FROM_GRID = 2.0**-GRID_BITS
ALL_INTEGERS = 2.0**52  # from here on every float64 is an integer
TO_INTEGER = 1.5 * 2.0**52  # the sum with it has no fraction, and the integer in its low bits
HALF = 2.0**31  # a grid value is cut in two where both halves fit 32 bits with their signs
BLOCK_ROWS = 128  # of 8 elements
LOW_HALF = np.int64(0xFFFFFFFF)
ZERO = np.uint64(0)
ONE = np.uint64(1)
TWO = np.uint64(2)
INDEX = np.uint32(INDEX_FACTOR)


@inlined
def _rint(v: float) -> np.int64:
    """Round ties to even: in [2**52, 2**53) a float64 has no fraction, so the sum rounds it off."""
    magnitude = abs(v)
    if magnitude < ALL_INTEGERS:
        magnitude = (magnitude + ALL_INTEGERS) - ALL_INTEGERS
    whole = np.int64(magnitude)
    return whole if v >= 0.0 else -whole


@jit
def off_grid(v: F32 | F64) -> int:
    outside = False
    for i in range(v.size):  # without a way out, it vectorises
        outside |= not abs(np.float64(v[i])) < GRID_LIMIT
    if not outside:
        return -1
    for i in range(v.size):
        if not abs(np.float64(v[i])) < GRID_LIMIT:
            return i
    return -1


@jit
def to_grid(q: I64, v: F32 | F64) -> None:
    for i in range(q.size):
        q[i] = _rint(np.float64(v[i]) * TO_GRID)


@jit
def from_grid(v: F64, q: I64) -> None:
    for i in range(v.size):
        v[i] = np.float64(q[i]) * FROM_GRID


@inlined
def _carry(a: np.uint64, b: np.uint64, total: np.uint64) -> np.int64:
    """Return what ``a + b`` carries. Comparisons would become an instruction without vectors."""
    return np.int64(((a & b) | ((a | b) & ~total)) >> np.uint64(63))


@jit
def add_scaled(lo: U64, hi: I64, q: I64, weight: np.int64) -> None:
    weight = np.int64(np.int32(weight))  # says that 32 bits hold it
    for i in range(lo.size):
        upper = (q[i] >> 32) * weight
        lower = (q[i] & LOW_HALF) * weight
        product = np.uint64(upper << 32) + np.uint64(lower)
        total = lo[i] + product
        hi[i] += ((upper + (lower >> 32)) >> 32) + _carry(lo[i], product, total)
        lo[i] = total


@inlined
def _integer(v: float) -> np.int64:
    """Return a float64 that is an integer of 32 bits; unlike a conversion, it vectorises."""
    return np.int64(np.int32(np.float64(v + TO_INTEGER).view(np.int64)))


@inlined
def _accumulate(lo: U64, hi: I64, i: int, v: np.float32, weight: np.int64) -> None:
    """Add ``rint(v * 2**48) * weight``. A float32 on the grid has 24 bits: its cut is exact."""
    scaled = np.float64(v) * TO_GRID
    cut = (scaled * (1.0 / HALF) + TO_INTEGER) - TO_INTEGER
    upper = _integer(cut) * weight
    lower = _integer(scaled - cut * HALF) * weight
    product = np.uint64(upper << 31) + np.uint64(lower)
    total = lo[i] + product
    hi[i] += ((upper + (lower >> 31)) >> 33) + _carry(lo[i], product, total)
    lo[i] = total


@jit
def accumulate(lo: U64, hi: I64, v: F32, weight: np.int64) -> None:
    weight = np.int64(np.int32(weight))
    for i in range(lo.size):
        _accumulate(lo, hi, i, v[i], weight)


@jit
def accumulate_int8(
    lo: U64, hi: I64, q: I8, scales: F32, layout: I64, weight: np.int64, segments: np.int64
) -> None:
    weight = np.int64(np.int32(weight))
    r = start = np.uint64(0)
    for segment in range(segments):
        length = np.uint64(layout[2 * segment + 1])
        for _ in range(layout[2 * segment]):
            scale = scales[r]
            for i in range(start, start + length):
                _accumulate(lo, hi, i, np.float32(q[i]) * scale, weight)
            r += np.uint64(1)
            start += length


@inlined
def _nearest(low: np.uint64, high: np.uint64) -> float:
    """Round the magnitude ``high*2**64 + low``, at least 2**63, to float64.

    Its top 63 or 64 bits are taken, the last one set if any bit below is: with
    10 bits to spare the conversion then rounds as if it saw all.
    """
    below, rest = ZERO, high  # becomes the position of high's top bit
    for shift in (32, 16, 8, 4, 2, 1):
        if rest >> np.uint64(shift) != ZERO:
            rest >>= np.uint64(shift)
            below += np.uint64(shift)
    # One more bit than `below` goes; in two shifts, as it may be all 64.
    kept = high << (np.uint64(63) - below) | low >> below >> ONE
    lost = low & ((TWO << below) - ONE)
    kept |= np.uint64(lost != ZERO)
    return np.float64(kept) * (np.float64(ONE << below) * 2.0)


@jit
def limbs_to_float64(out: F64, lo: U64, hi: I64) -> None:
    for i in range(out.size):
        low, high = lo[i], np.uint64(hi[i])
        if hi[i] == np.int64(low) >> 63:  # 64 bits hold it
            out[i] = np.float64(np.int64(low))
        elif hi[i] >= 0:
            out[i] = _nearest(low, high)
        else:
            low = ~low + ONE
            out[i] = -_nearest(low, ~high + np.uint64(low == ZERO))


@jit
def derived_delta_c(q: I64, c_a: F32, delta_y: F32, rate_sum: float, damping: float) -> int:
    bad = -1
    for i in range(q.size):
        v = damping * (-np.float64(c_a[i]) - np.float64(delta_y[i]) / rate_sum)
        if abs(v) < GRID_LIMIT:
            q[i] = _rint(v * TO_GRID)
        else:
            q[i] = 0
            if bad < 0:
                bad = i
    return bad


@jit
def control_shift(d: F32, c: F32, q_ci: I64) -> None:
    for i in range(d.size):
        d[i] = np.float32(np.float64(c[i]) - np.float64(q_ci[i]) * FROM_GRID)


@inlined
def _block_of_squares(v: F32 | F64, start: np.uint64, rows: int) -> float:
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for i in range(rows):
        row = start + np.uint64(8 * i)  # unsigned: no lane asks whether it counts from the end
        v0 = np.float64(v[row + np.uint64(0)])
        v1 = np.float64(v[row + np.uint64(1)])
        v2 = np.float64(v[row + np.uint64(2)])
        v3 = np.float64(v[row + np.uint64(3)])
        v4 = np.float64(v[row + np.uint64(4)])
        v5 = np.float64(v[row + np.uint64(5)])
        v6 = np.float64(v[row + np.uint64(6)])
        v7 = np.float64(v[row + np.uint64(7)])
        s0 += v0 * v0
        s1 += v1 * v1
        s2 += v2 * v2
        s3 += v3 * v3
        s4 += v4 * v4
        s5 += v5 * v5
        s6 += v6 * v6
        s7 += v7 * v7
    return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))


@jit
def sum_of_squares(v: F32 | F64) -> float:
    rows = v.size >> 3
    total = 0.0
    for row in range(0, rows, BLOCK_ROWS):
        total += _block_of_squares(v, np.uint64(8 * row), min(rows - row, BLOCK_ROWS))
    for i in range(8 * rows, v.size):
        total += np.float64(v[i]) * np.float64(v[i])
    return total


@jit
def squares_of_blocks(sums: F64, v: F32) -> None:
    for block in range(sums.size):
        sums[block] = _block_of_squares(v, np.uint64(8 * BLOCK_ROWS * block), BLOCK_ROWS)


@jit
def linear_digest(q: I64, seed: np.uint32, first: np.uint32) -> np.uint64:
    total = ZERO
    for i in range(q.size):
        h = hashed(np.uint32(np.uint32(first + np.uint32(i)) * INDEX), seed)
        total += np.uint64(h | np.uint32(1)) * np.uint64(q[i])
    return total
