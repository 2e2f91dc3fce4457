"""The kernels on int8 rows in NumPy: the second half of ``reference``.

Rows of one segment are of one length, and are computed together as a matrix.
"""

# ruff: noqa: PLR0917 - a kernel takes its arguments by position, in C too

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.kernels.hash import (
    GROUP,
    INDEX_FACTOR,
    MIX_FACTOR_1,
    MIX_FACTOR_2,
    UNIFORM_BITS,
)
from kellet.kernels.reference_steps import scaffold_step_shift
from kellet.kernels.table import LARGEST_SCALE, REFIT, SMALLEST_SCALE

__all__ = [
    "dequantise",
    "dequantise_add",
    "int8_prox_step",
    "int8_prox_step_full",
    "int8_scaffold_step",
    "int8_scaffold_step_full",
    "int8_sgd_step",
    "int8_sgd_step_full",
    "quantise",
    "quantise_stochastic",
    "scaffold_step_shift_rows",
    "scaffold_step_shift_rows_full",
]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I8 = NDArray[np.int8]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]

STEPS = np.float32(1 << UNIFORM_BITS)  # of a rounded value's fraction in one unit
OFFSET = np.float32((1 << 23) + (128 << UNIFORM_BITS))
LIMIT = np.float32(127)


def hashed(index: U32, seed: np.uint32) -> U32:
    """The hash of each index."""
    h: U32 = index * np.uint32(INDEX_FACTOR) ^ seed
    h ^= h >> 16
    h *= np.uint32(MIX_FACTOR_1)
    h ^= h >> 15
    h *= np.uint32(MIX_FACTOR_2)
    h ^= h >> 16
    return h


def uniforms(shape: tuple[int, int], first: int | np.uint32, seed: np.uint32) -> U32:
    """The uniforms, as ``hash`` says, of rows of one length, whose first element has that index."""
    rows, length = shape
    position = np.arange(length)
    second = (position < length - length % GROUP) & (position % GROUP >= GROUP // 2)
    index = np.arange(rows * length, dtype=np.uint32).reshape(shape) + np.uint32(first)
    h = hashed(index - np.where(second, GROUP // 2, 0).astype(np.uint32), seed)
    return np.where(second, h & ((1 << UNIFORM_BITS) - 1), h >> (32 - UNIFORM_BITS))


def segments_of(layout: I64, segments: np.int64) -> Iterator[tuple[slice, slice, tuple[int, int]]]:
    """Give each segment's rows, its elements, and its shape (rows, their length)."""
    row = start = 0
    for i in range(segments):
        rows, length = int(layout[2 * i]), int(layout[2 * i + 1])
        yield slice(row, row + rows), slice(start, start + rows * length), (rows, length)
        row += rows
        start += rows * length


def fixed(v: Any) -> F32:
    """``2**23 + (v + 128)*2**15``: for v in [-128, 128) the mantissa is v with 15 bits of fraction.

    The sum rounds, ties to even, and its exponent never changes.
    """
    held: F32 = v * STEPS + OFFSET
    return held


def stochastic(v: F32, u: U32) -> NDArray[np.int32]:
    """``floor(v + u/2**15)`` of a value as ``fixed`` holds it; beyond int8 if it cannot hold it."""
    return (v.view(np.uint32) + u - OFFSET.view(np.uint32)).view(np.int32) >> UNIFORM_BITS


def magnitude(v: F32) -> NDArray[np.int32]:
    """The integer bits of each row's largest ``|v|``: ordered as the values are, NaN above all."""
    top: NDArray[np.int32] = (v.view(np.int32) & 0x7FFFFFFF).max(axis=1, initial=0)
    return top


def bits_of(v: float) -> int:
    """The integer bits of one value."""
    return int(np.float32(v).view(np.int32))


def select(condition: NDArray[np.bool_], this: Any, other: Any) -> F32:
    """Clamp as the kernels do, by one comparison, so that NaN takes the bound."""
    chosen: F32 = np.where(condition, this, other).astype(np.float32)
    return chosen


def clamped(v: F32) -> F32:
    v = select(v > -LIMIT, v, -LIMIT)
    return select(v < LIMIT, v, LIMIT)


Corrected = Callable[..., F32]  # of q, its scale, g, and the row's anchor or shift with its scale


def _plain(q: F32, scale: F32, g: F32, other: F32, other_scale: F32) -> F32:
    return g


def _proximal(mu: np.float32) -> Corrected:
    return lambda q, scale, g, x, x_scale: g + mu * (q * scale - x * x_scale)


def _shifted(q: F32, scale: F32, g: F32, d: F32, d_scale: F32) -> F32:
    return g + d * d_scale


def _full(corrected: Corrected, clip: np.float32, decay: np.float32) -> Corrected:
    return lambda q, scale, g, *beside: corrected(q, scale, clip * g + decay * (q * scale), *beside)


def int8_sgd_step(
    q: I8, scales: F32, room: I8, g: F32, layout: I64,
    lr: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``y -= lr*g`` on int8 rows; the number of rows left as they were."""
    corrected = _plain
    return _step(q, scales, g, q, scales, layout, lr, seed, first, segments, corrected)


def int8_prox_step(
    q: I8, scales: F32, room: I8, g: F32, x: I8, x_scales: F32, layout: I64,
    lr: np.float32, mu: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``y -= lr*(g + mu*(y - x))`` on int8 rows; the number of rows left as they were."""
    corrected = _proximal(mu)
    return _step(q, scales, g, x, x_scales, layout, lr, seed, first, segments, corrected)


def int8_scaffold_step(
    q: I8, scales: F32, room: I8, g: F32, d: I8, d_scales: F32, layout: I64,
    lr: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``y -= lr*(g + d)`` on int8 rows; the number of rows left as they were."""
    corrected = _shifted
    return _step(q, scales, g, d, d_scales, layout, lr, seed, first, segments, corrected)


def int8_sgd_step_full(
    q: I8, scales: F32, room: I8, g: F32, layout: I64,
    lr: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``int8_sgd_step`` with ``clip*g + decay*y`` for g."""
    corrected = _full(_plain, clip, decay)
    return _step(q, scales, g, q, scales, layout, lr, seed, first, segments, corrected)


def int8_prox_step_full(
    q: I8, scales: F32, room: I8, g: F32, x: I8, x_scales: F32, layout: I64,
    lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``int8_prox_step`` with ``clip*g + decay*y`` for g."""
    corrected = _full(_proximal(mu), clip, decay)
    return _step(q, scales, g, x, x_scales, layout, lr, seed, first, segments, corrected)


def int8_scaffold_step_full(
    q: I8, scales: F32, room: I8, g: F32, d: I8, d_scales: F32, layout: I64,
    lr: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``int8_scaffold_step`` with ``clip*g + decay*y`` for g."""
    corrected = _full(_shifted, clip, decay)
    return _step(q, scales, g, d, d_scales, layout, lr, seed, first, segments, corrected)


def _step(
    q: I8, scales: F32, g: F32, other: I8, other_scales: F32, layout: I64,
    lr: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
    corrected: Corrected,
) -> int:  # fmt: skip
    """Walk against the corrected gradient, in units of each row's scale, and round.

    The moves ``floor(u - (lr/scale)*corrected)`` are added to a row if the largest magnitude
    that it then has lies in [58, 126], and no move is -128 or 127, or beyond. Any other row is
    looked at as it would be, ``v = q - (lr/scale)*corrected``. It keeps its scale if its largest
    ``|v|`` lies in [57, 127], or is 0; else its scale is multiplied by ``1.08/127`` times its
    largest ``|v|``, and v divided by as much. Then v is rounded by the same uniforms. A row is
    left as it was where its largest ``|v|`` is not finite, or its scale would exceed the largest.

    So a row has another scale if and only if v calls for it, whatever was drawn: what is in
    range once it is rounded, a unit within the bounds, was in range before.
    """
    left = 0
    for rows, elements, shape in segments_of(layout, segments):
        old = q[elements].reshape(shape).astype(np.float32)
        scale = scales[rows, None]
        gradient = corrected(
            old,
            scale,
            g[elements].reshape(shape),
            other[elements].reshape(shape).astype(np.float32),
            other_scales[rows, None],
        )
        u = uniforms(shape, first + np.uint32(elements.start), seed)
        rate = lr / scale
        moves = stochastic(OFFSET - rate * STEPS * gradient, u)
        moved = old + moves
        most = np.abs(moved).max(axis=1, keepdims=True)
        adds = (most >= 58) & (most <= 126)
        adds &= ((moves > -127) & (moves < 127)).all(axis=1, keepdims=True)

        v = old - rate * gradient
        top = magnitude(v)[:, None]
        keeps = (top >= bits_of(57)) & (top <= bits_of(127)) | (top == 0)
        wanted = scale * top.view(np.float32) * np.float32(REFIT)
        wanted = select(wanted > SMALLEST_SCALE, wanted, SMALLEST_SCALE)
        wanted = np.where(keeps, scale, wanted)
        holds = keeps | (np.isfinite(top.view(np.float32)) & (wanted <= LARGEST_SCALE))
        placed = stochastic(fixed(clamped(v * (scale / wanted))), u)
        new = np.where(adds, moved, np.where(holds, placed, old))
        q[elements] = new.astype(np.int8).reshape(-1)
        scales[rows] = np.where(~adds & holds, wanted, scale)[:, 0]
        left += int(np.count_nonzero(~(adds | holds)))
    return left


def scaffold_step_shift_rows(
    y: F32, g: F32, d: I8, d_scales: F32, layout: I64, lr: np.float32, segments: np.int64
) -> None:
    """``y -= lr*(g + d)``: float32 weights, and the shift as int8 rows."""
    shift = np.empty_like(y)
    dequantise(shift, d, d_scales, layout, segments)
    scaffold_step_shift(y, g, shift, lr)


def scaffold_step_shift_rows_full(
    y: F32, g: F32, d: I8, d_scales: F32, layout: I64,
    lr: np.float32, clip: np.float32, decay: np.float32, segments: np.int64,
) -> None:  # fmt: skip
    """``scaffold_step_shift_rows`` with ``clip*g + decay*y`` for g."""
    scaffold_step_shift_rows(y, clip * g + decay * y, d, d_scales, layout, lr, segments)


def quantise(
    q: I8, scales: F32, v: F32, layout: I64, headroom: np.float32, segments: np.int64
) -> int:
    """``q = rint(v/scale)``, ties to even, ``scale = max|v|*headroom/127`` a row.

    The result is the first row that is not finite or beyond the largest scale, or -1.
    """

    def nearest(t: F32, elements: slice) -> I8:
        return np.rint(t).astype(np.int8)

    return _quantise(q, scales, v, layout, headroom, segments, nearest)


def quantise_stochastic(
    q: I8, scales: F32, v: F32, layout: I64, headroom: np.float32, seed: np.uint32,
    segments: np.int64,
) -> int:  # fmt: skip
    """``q = floor(v/scale + u)``, u by the hash of seed and index; else as ``quantise``."""

    def by_hash(t: F32, elements: slice) -> I8:
        u = uniforms((t.shape[0], t.shape[1]), elements.start, seed)
        return stochastic(fixed(t), u).astype(np.int8)

    return _quantise(q, scales, v, layout, headroom, segments, by_hash)


def _quantise(
    q: I8, scales: F32, v: F32, layout: I64, headroom: np.float32, segments: np.int64,
    rounded: Callable[[F32, slice], I8],
) -> int:  # fmt: skip
    bad = -1
    for rows, elements, shape in segments_of(layout, segments):
        values = v[elements].reshape(shape)
        top = magnitude(values)
        scale = top.view(np.float32) * headroom / LIMIT
        scale = select(scale > SMALLEST_SCALE, scale, SMALLEST_SCALE)
        fits = np.isfinite(top.view(np.float32)) & (scale <= LARGEST_SCALE)
        if bad < 0 and not fits.all():
            bad = rows.start + int(np.flatnonzero(~fits)[0])
        # Rows that do not fit become zeros of scale 1.
        scale = select(fits, scale, 1)
        inverse = np.where(fits, np.float32(1) / scale, np.float32(0))
        t = np.where(fits[:, None], clamped(values * inverse[:, None]), np.float32(0))
        q[elements] = rounded(t, elements).reshape(-1)
        scales[rows] = scale
    return bad


def dequantise(v: F32, q: I8, scales: F32, layout: I64, segments: np.int64) -> None:
    """``v = float32(q) * scale``."""
    for rows, elements, shape in segments_of(layout, segments):
        v[elements] = (q[elements].reshape(shape) * scales[rows, None]).reshape(-1)


def dequantise_add(
    total: F64, q: I8, scales: F32, layout: I64, weight: np.float64, segments: np.int64
) -> None:
    """``total += weight * float64(float32(q) * scale)``."""
    for rows, elements, shape in segments_of(layout, segments):
        v = (q[elements].reshape(shape) * scales[rows, None]).reshape(-1)
        total[elements] += weight * v.astype(np.float64)
