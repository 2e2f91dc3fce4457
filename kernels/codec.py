"""The codecs of updates, compiled by Numba. ``reference_rows`` and ``reference`` specify them.

Int8 rows are explained in ``resident``, stochastic rounding in ``rounding``. A vector's
largest elements are found by their integer bits: of two positive floats the larger has
the larger bits.
"""

# ruff: noqa: PLR0917 - a kernel takes its arguments by position, in C too

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.kernels._jit import inlined, jit
from kellet.kernels.resident import INFINITE, LARGEST, MAGNITUDE, ONE, SMALLEST
from kellet.kernels.rounding import LIMIT, OFFSET, STEPS, Position, clamped, over_row, rounded

__all__ = [
    "add_weighted",
    "dequantise",
    "dequantise_add",
    "quantise",
    "quantise_stochastic",
    "top_k",
]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I8 = NDArray[np.int8]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]

TO_INTEGER = np.float32(3 << 22)  # the sum with it has no fraction, and the integer in its low bits


@inlined
def _scale(v: F32, start: np.uint64, length: np.uint64, headroom: np.float32) -> np.float32:
    """Return the scale for a row, or 0 where there is none."""
    top = np.int32(0)
    for j in range(length):
        i = start + j
        top = max(top, np.int32(np.float32(v[i]).view(np.int32) & MAGNITUDE))
    scale = np.int32(top).view(np.float32) * headroom / LIMIT
    scale = scale if scale > SMALLEST else SMALLEST
    return scale if top < INFINITE and scale <= LARGEST else np.float32(0)


@inlined
def _to_nearest(operands: Any, length: np.uint64, first: np.uint32, seed: np.uint32) -> None:
    q, v, start, inverse = operands
    for j in range(length):
        i = start + j
        whole = clamped(v[i] * inverse) + TO_INTEGER
        q[i] = np.int8(np.float32(whole).view(np.int32))


@inlined
def _draw(operands: Any, j: Position, uniform: np.uint32) -> None:
    q, v, start, inverse = operands
    i = start + j
    q[i] = np.int8(rounded(clamped(v[i] * inverse) * STEPS + OFFSET, uniform))


def _quantise_by(round_row: Callable[..., None]) -> Callable[..., np.int64]:
    """Return the loop over rows, which gives the first that has no scale, or -1."""

    @inlined
    def quantise_rows(
        q: I8, scales: F32, v: F32, layout: I64, headroom: np.float32, seed: np.uint32,
        segments: np.int64,
    ) -> np.int64:  # fmt: skip
        r = start = np.uint64(0)
        bad = np.int64(-1)
        for segment in range(segments):
            length = np.uint64(layout[2 * segment + 1])
            for _ in range(layout[2 * segment]):
                scale = _scale(v, start, length, headroom)
                if scale == 0:
                    if bad < 0:
                        bad = np.int64(r)
                    scales[r] = 1
                    for i in range(start, start + length):
                        q[i] = 0
                else:
                    scales[r] = scale
                    operands = (q, v, start, np.float32(1) / scale)
                    round_row(operands, length, np.uint32(start), seed)
                r += ONE
                start += length
        return bad

    return quantise_rows


_nearest, _stochastic = _quantise_by(_to_nearest), _quantise_by(over_row(_draw))


@jit
def quantise(
    q: I8, scales: F32, v: F32, layout: I64, headroom: np.float32, segments: np.int64
) -> np.int64:
    return _nearest(q, scales, v, layout, headroom, np.uint32(0), segments)


@jit
def quantise_stochastic(
    q: I8, scales: F32, v: F32, layout: I64, headroom: np.float32, seed: np.uint32,
    segments: np.int64,
) -> np.int64:  # fmt: skip
    return _stochastic(q, scales, v, layout, headroom, seed, segments)


@jit
def dequantise(v: F32, q: I8, scales: F32, layout: I64, segments: np.int64) -> None:
    r = start = np.uint64(0)
    for segment in range(segments):
        length = np.uint64(layout[2 * segment + 1])
        for _ in range(layout[2 * segment]):
            scale = scales[r]
            for j in range(length):
                i = start + j
                v[i] = np.float32(q[i]) * scale
            r += ONE
            start += length


@jit
def dequantise_add(
    total: F64, q: I8, scales: F32, layout: I64, weight: np.float64, segments: np.int64
) -> None:
    r = start = np.uint64(0)
    for segment in range(segments):
        length = np.uint64(layout[2 * segment + 1])
        for _ in range(layout[2 * segment]):
            scale = scales[r]
            for j in range(length):
                i = start + j
                total[i] += weight * np.float64(np.float32(q[i]) * scale)
            r += ONE
            start += length


@jit
def add_weighted(total: F64, v: F32 | F64, weight: np.float64) -> None:
    for i in range(total.size):
        total[i] += weight * np.float64(v[i])


@jit
def top_k(index: U32, value: F32, counts: I64, v: F32, n: np.int64) -> None:
    k = index.size
    # The k-th largest magnitude, a digit at a time from the top, and how many of it are wanted.
    threshold = np.int32(0)
    wanted = np.int64(k)
    for shift in (20, 10, 0):
        mask = np.int32(0x7FF if shift == 20 else 0x3FF)
        for i in range(n):
            bits = np.float32(v[i]).view(np.int32) & MAGNITUDE
            if shift == 20 or bits >> (shift + 10) == threshold >> (shift + 10):
                counts[(bits >> shift) & mask] += 1
        digit = np.int64(-1)
        for d in range(mask, -1, -1):
            if digit < 0:
                if counts[d] >= wanted:
                    digit = np.int64(d)
                else:
                    wanted -= counts[d]
            counts[d] = 0
        threshold |= np.int32(max(digit, np.int64(0)) << shift)
    taken = 0
    for i in range(n):
        bits = np.float32(v[i]).view(np.int32) & MAGNITUDE
        if bits > threshold or (bits == threshold and wanted > 0):
            if bits == threshold:
                wanted -= 1
            if taken < k:
                index[taken] = i
                value[taken] = v[i]
                taken += 1
