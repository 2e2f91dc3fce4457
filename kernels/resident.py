"""The local steps on int8 weights, compiled by Numba. ``reference_rows`` is their specification.

A weight is held as ``q * scale``, q in [-127, 127], one scale a row. A step works in units of
the scale. Most rows keep theirs; then it is enough to round the move, as ``rounding`` explains,
``q += floor(u - (lr/scale) * gradient)``. No weight becomes a float for that, and what the row
comes to is looked through as bytes: it is in range for sure if it is so by a unit, which is
all that rounding adds. Of any other row the exact ``v = q - (lr/scale) * gradient`` decides
whether it gets another scale, and v is rounded. Either way a weight without a gradient comes
out as it was.
"""

# ruff: noqa: PLR0917 - a kernel takes its arguments by position, in C too

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.kernels._jit import inlined, jit
from kellet.kernels.rounding import (
    GROUP,
    LIMIT,
    OFFSET,
    STEPS,
    Position,
    clamped,
    over_row,
    rounded,
    uniform_of,
)
from kellet.kernels.table import LARGEST_SCALE, REFIT, ROOM, SMALLEST_SCALE

__all__ = [
    "int8_prox_step",
    "int8_prox_step_full",
    "int8_scaffold_step",
    "int8_scaffold_step_full",
    "int8_sgd_step",
    "int8_sgd_step_full",
]

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
I64 = NDArray[np.int64]

ZERO, ONE = np.uint64(0), np.uint64(1)
ROOM_SIZE = np.uint64(ROOM)
LOWEST, HIGHEST = -128, 127
MAGNITUDE = np.int32(0x7FFFFFFF)
INFINITE = int(np.float32(np.inf).view(np.int32))
# The largest magnitude of a row that keeps its scale, as bits; and as rounded, a unit within.
LEAST_KEPT, MOST_KEPT = int(np.float32(57).view(np.int32)), int(LIMIT.view(np.int32))
LEAST_SURE, MOST_SURE = 58, 126
SMALLEST, LARGEST = np.float32(SMALLEST_SCALE), np.float32(LARGEST_SCALE)
REFIT_TO = np.float32(REFIT)
UNUSED = np.float32(0)


@inlined
def _narrowed(v: np.int32) -> np.int8:
    """Return the nearest int8: one instruction for many lanes."""
    return np.int8(min(max(v, np.int32(LOWEST)), np.int32(HIGHEST)))


@inlined
def _sum(a: np.int8, b: np.int8) -> np.int8:
    """Return the int8 nearest to the sum: one instruction as well."""
    total = np.int16(np.int16(a) + np.int16(b))
    return np.int8(min(max(total, np.int16(LOWEST)), np.int16(HIGHEST)))


@inlined
def _magnitude(v: np.int8) -> np.uint8:
    return np.uint8(np.int8(abs(v)))


@inlined
def _refitted(scale: np.float32, top: np.int32) -> np.float32:
    """Return the scale for a row whose largest magnitude, in the old scale's units, has these bits.

    The result is the old one where the row is in range or of zeros, and zero
    where the row cannot be held: it is not finite, or beyond the largest scale.
    """
    if top == 0 or LEAST_KEPT <= top <= MOST_KEPT:
        return scale
    wanted = scale * np.int32(top).view(np.float32) * REFIT_TO
    wanted = wanted if wanted > SMALLEST else SMALLEST
    return wanted if top < INFINITE and wanted <= LARGEST else np.float32(0)


# The gradient of a weight: as it is, or clipped and with weight decay.


@inlined
def _as_given(
    q: np.int8, scale: np.float32, g: np.float32, clip: np.float32, decay: np.float32
) -> np.float32:
    return g


@inlined
def _full(
    q: np.int8, scale: np.float32, g: np.float32, clip: np.float32, decay: np.float32
) -> np.float32:
    return clip * g + decay * (np.float32(q) * scale)


# What a step walks against: the gradient, as each algorithm corrects it. `scale` is the weight's;
# `other` and `other_scale` are its row's anchor or shift.


@inlined
def _plain(
    q: np.int8, scale: np.float32, g: np.float32, other: np.int8, other_scale: np.float32,
    mu: np.float32,
) -> np.float32:  # fmt: skip
    return g


@inlined
def _proximal(
    q: np.int8, scale: np.float32, g: np.float32, other: np.int8, other_scale: np.float32,
    mu: np.float32,
) -> np.float32:  # fmt: skip
    return g + mu * (np.float32(q) * scale - np.float32(other) * other_scale)


@inlined
def _shifted(
    q: np.int8, scale: np.float32, g: np.float32, other: np.int8, other_scale: np.float32,
    mu: np.float32,
) -> np.float32:  # fmt: skip
    return g + np.float32(other) * other_scale


def _step_of(
    given: Callable[..., np.float32], corrected: Callable[..., np.float32]
) -> Callable[..., int]:
    """Return the step on all rows, which gives how many had to stay as they were.

    A row is (q, its scale, g, other, its other scale, terms), terms are (mu, clip, decay).
    """

    @inlined
    def gradient_of(row: Any, i: Position) -> np.float32:
        q, scale, g, other, other_scale, terms = row
        mu, clip, decay = terms
        gradient = given(q[i], scale, g[i], clip, decay)
        return corrected(q[i], scale, gradient, other[i], other_scale, mu)

    @inlined
    def move(operands: Any, j: Position, uniform: np.uint32) -> None:
        row, start, rate, room, at = operands
        gradient = gradient_of(row, start + j)
        room[at + j] = _narrowed(rounded(OFFSET - rate * gradient, uniform))

    moves = over_row(move)

    @inlined
    def keeps_scale(q: I8, start: np.uint64, length: np.uint64, room: I8, at: np.uint64) -> bool:
        """Add the moves to the row, if it then is in range for sure."""
        most = most_moved = np.uint8(0)
        for j in range(length):
            moved = room[at + j]
            most = max(most, _magnitude(_sum(q[start + j], moved)))
            most_moved = max(most_moved, _magnitude(moved))
        # A move of 127 or -128 may be a larger one.
        if most < LEAST_SURE or most > MOST_SURE or most_moved > MOST_SURE:
            return False
        for j in range(length):
            q[start + j] += room[at + j]
        return True

    @inlined
    def refit(
        row: Any, scales: F32, r: np.uint64, start: np.uint64, length: np.uint64,
        lr: np.float32, seed: np.uint32, first: np.uint32,
    ) -> int:  # fmt: skip
        """Step with the scale that the row needs; 1 where there is none: it then is as it was."""
        q, scale = row[0], row[1]
        rate = lr / scale
        top = np.int32(0)
        for k in range(length):
            i = start + k
            v = np.float32(q[i]) - rate * gradient_of(row, i)
            top = max(top, np.int32(np.float32(v).view(np.int32) & MAGNITUDE))
        scale_now = _refitted(scale, top)
        if scale_now == 0:
            return 1
        scales[r] = scale_now
        factor = scale / scale_now
        for k in range(length):
            i = start + k
            v = np.float32(q[i]) - rate * gradient_of(row, i)
            uniform = uniform_of(k, length, first, seed)
            q[i] = np.int8(rounded(clamped(v * factor) * STEPS + OFFSET, uniform))
        return 0

    @inlined
    def step(
        q: I8, scales: F32, room: I8, g: F32, other: I8, other_scales: F32, layout: I64,
        lr: np.float32, terms: Any, seed: np.uint32, first: np.uint32, segments: np.int64,
    ) -> int:  # fmt: skip
        r = start = ZERO
        left = 0
        for segment in range(segments):
            rows, length = np.uint64(layout[2 * segment]), np.uint64(layout[2 * segment + 1])
            end = r + rows
            while r < end:
                # Short rows go together: their moves are read back only once they are out of the
                # store buffer, which does not hand out what several stores wrote.
                count = at = ZERO
                while r + count < end and (count == 0 or at + length <= ROOM_SIZE):
                    scale, other_scale = scales[r + count], other_scales[r + count]
                    row = (q, scale, g, other, other_scale, terms)
                    i = start + at
                    operands = (row, i, lr / scale * STEPS, room, at)
                    moves(operands, length, np.uint32(first + np.uint32(i)), seed)
                    count += ONE
                    at += length
                at = ZERO
                for b in range(count):
                    i = start + at
                    if length == GROUP:  # code of its own, without remainders
                        keeps = keeps_scale(q, i, GROUP, room, at)
                    else:
                        keeps = keeps_scale(q, i, length, room, at)
                    if not keeps:
                        row = (q, scales[r + b], g, other, other_scales[r + b], terms)
                        index = np.uint32(first + np.uint32(i))
                        left += refit(row, scales, r + b, i, length, lr, seed, index)
                    at += length
                r += count
                start += at
        return left

    return step


_sgd, _sgd_full = _step_of(_as_given, _plain), _step_of(_full, _plain)
_prox, _prox_full = _step_of(_as_given, _proximal), _step_of(_full, _proximal)
_scaffold, _scaffold_full = _step_of(_as_given, _shifted), _step_of(_full, _shifted)


@jit
def int8_sgd_step(
    q: I8, scales: F32, room: I8, g: F32, layout: I64,
    lr: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _sgd(
        q, scales, room, g, q, scales, layout, lr, (UNUSED, UNUSED, UNUSED), seed, first, segments
    )


@jit
def int8_prox_step(
    q: I8, scales: F32, room: I8, g: F32, x: I8, x_scales: F32, layout: I64,
    lr: np.float32, mu: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _prox(
        q, scales, room, g, x, x_scales, layout, lr, (mu, UNUSED, UNUSED), seed, first, segments
    )


@jit
def int8_scaffold_step(
    q: I8, scales: F32, room: I8, g: F32, d: I8, d_scales: F32, layout: I64,
    lr: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _scaffold(
        q, scales, room, g, d, d_scales, layout, lr, (UNUSED, UNUSED, UNUSED), seed, first, segments
    )


@jit
def int8_sgd_step_full(
    q: I8, scales: F32, room: I8, g: F32, layout: I64,
    lr: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _sgd_full(
        q, scales, room, g, q, scales, layout, lr, (UNUSED, clip, decay), seed, first, segments
    )


@jit
def int8_prox_step_full(
    q: I8, scales: F32, room: I8, g: F32, x: I8, x_scales: F32, layout: I64,
    lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _prox_full(
        q, scales, room, g, x, x_scales, layout, lr, (mu, clip, decay), seed, first, segments
    )


@jit
def int8_scaffold_step_full(
    q: I8, scales: F32, room: I8, g: F32, d: I8, d_scales: F32, layout: I64,
    lr: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _scaffold_full(
        q, scales, room, g, d, d_scales, layout, lr, (UNUSED, clip, decay), seed, first, segments
    )
