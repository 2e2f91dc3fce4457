"""The kernels on int8 rows in NumPy: the second half of ``reference``.

Rows of one segment are of one length, and are computed together as a matrix.
"""

# ruff: noqa: PLR0917 - a kernel takes its arguments by position, in C too

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.kernels.hash import INDEX_FACTOR, MIX_FACTOR_1, MIX_FACTOR_2
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

STEPS = np.float32(1 << 15)  # of a rounded value's fraction in one unit
OFFSET = np.float32((1 << 23) + (128 << 15))
LIMIT = np.float32(127)


def uniforms(n: int, first: int | np.uint32, seed: np.uint32) -> U32:
    """The 16-bit uniforms of n elements: the upper half of the hash of (seed, first + j)."""
    h: U32 = (np.arange(n, dtype=np.uint32) + np.uint32(first)) * np.uint32(INDEX_FACTOR) ^ seed
    h ^= h >> 16
    h *= np.uint32(MIX_FACTOR_1)
    h ^= h >> 15
    h *= np.uint32(MIX_FACTOR_2)
    h ^= h >> 16
    h >>= 16
    return h


def segments_of(layout: I64, segments: np.int64) -> Iterator[tuple[slice, slice, tuple[int, int]]]:
    """Give each segment's rows, its elements, and its shape (rows, their length)."""
    row = start = 0
    for i in range(segments):
        rows, length = int(layout[2 * i]), int(layout[2 * i + 1])
        yield slice(row, row + rows), slice(start, start + rows * length), (rows, length)
        row += rows
        start += rows * length


def fixed(v: Any) -> Any:
    """``2**23 + (v + 128)*2**15``: for v in [-128, 128) the mantissa is v with 15 bits of fraction.

    The sum rounds, ties to even, and its exponent never changes.
    """
    return v * STEPS + OFFSET


def stochastic(v: F32, u: U32) -> I8:
    """``floor(v + u/2**16)`` of a value as ``fixed`` holds it."""
    mantissa = v.view(np.uint32) & 0x7FFFFF
    return (((2 * mantissa + u) >> 16).astype(np.int32) - 128).astype(np.int8)


def magnitude(v: F32) -> NDArray[np.int32]:
    """The integer bits of each row's largest ``|v|``: ordered as the values are, NaN above all."""
    top: NDArray[np.int32] = (v.view(np.int32) & 0x7FFFFFFF).max(axis=1, initial=0)
    return top


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
    q: I8, scales: F32, kept: I8, g: F32, layout: I64,
    lr: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``y -= lr*g`` on int8 rows; the number of rows left as they were."""
    corrected = _plain
    return _step(q, scales, g, q, scales, layout, lr, seed, first, segments, corrected)


def int8_prox_step(
    q: I8, scales: F32, kept: I8, g: F32, x: I8, x_scales: F32, layout: I64,
    lr: np.float32, mu: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``y -= lr*(g + mu*(y - x))`` on int8 rows; the number of rows left as they were."""
    corrected = _proximal(mu)
    return _step(q, scales, g, x, x_scales, layout, lr, seed, first, segments, corrected)


def int8_scaffold_step(
    q: I8, scales: F32, kept: I8, g: F32, d: I8, d_scales: F32, layout: I64,
    lr: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``y -= lr*(g + d)`` on int8 rows; the number of rows left as they were."""
    corrected = _shifted
    return _step(q, scales, g, d, d_scales, layout, lr, seed, first, segments, corrected)


def int8_sgd_step_full(
    q: I8, scales: F32, kept: I8, g: F32, layout: I64,
    lr: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``int8_sgd_step`` with ``clip*g + decay*y`` for g."""
    corrected = _full(_plain, clip, decay)
    return _step(q, scales, g, q, scales, layout, lr, seed, first, segments, corrected)


def int8_prox_step_full(
    q: I8, scales: F32, kept: I8, g: F32, x: I8, x_scales: F32, layout: I64,
    lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    """``int8_prox_step`` with ``clip*g + decay*y`` for g."""
    corrected = _full(_proximal(mu), clip, decay)
    return _step(q, scales, g, x, x_scales, layout, lr, seed, first, segments, corrected)


def int8_scaffold_step_full(
    q: I8, scales: F32, kept: I8, g: F32, d: I8, d_scales: F32, layout: I64,
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

    ``v = q - (lr/scale)*corrected``. A row keeps its scale if its largest
    ``|v|``, as ``fixed`` rounds it, lies in [57, 127]. Else its scale is multiplied
    by ``1.08/127`` times its largest ``|v|``, and v divided by as much. A row is left
    as it was where that is not finite or beyond the largest scale; a row that
    comes to zeros keeps its scale.
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
        rate = lr / scale
        v = old - rate * gradient
        top = magnitude(v)[:, None]
        kept = fixed(old) - rate * STEPS * gradient
        inside = (fixed(-LIMIT) <= kept) & (kept <= fixed(LIMIT))
        large = (kept <= fixed(np.float32(-57))) | (kept >= fixed(np.float32(57)))
        keeps = inside.all(axis=1, keepdims=True) & large.any(axis=1, keepdims=True)

        wanted = scale * top.view(np.float32) * np.float32(REFIT)
        wanted = select(wanted > SMALLEST_SCALE, wanted, SMALLEST_SCALE)
        wanted = np.where(top == 0, scale, wanted)
        holds = np.isfinite(top.view(np.float32)) & (wanted <= LARGEST_SCALE)
        refits = ~keeps & (holds | (top == 0))
        refitted = fixed(clamped(v * (scale / wanted)))
        u = uniforms(old.size, first + np.uint32(elements.start), seed).reshape(shape)
        new = stochastic(np.where(keeps, kept, refitted), u)
        q[elements] = np.where(keeps | refits, new, q[elements].reshape(shape)).reshape(-1)
        scales[rows] = np.where(refits, wanted, scale)[:, 0]
        left += int(np.count_nonzero(~(keeps | refits)))
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
    """``q = floor(v/scale + u)`` with the uniforms of (seed, index); else as ``quantise``."""

    def by_hash(t: F32, elements: slice) -> I8:
        return stochastic(fixed(t), uniforms(t.size, elements.start, seed).reshape(t.shape))

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
