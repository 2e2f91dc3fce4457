"""The local steps on int8 weights, compiled by Numba. ``reference_rows`` is their specification.

A weight is held as ``q * scale``, q in [-127, 127], one scale a row. A step
works in units of the scale, ``v = q - (lr/scale) * gradient``, so that a weight
without a gradient comes out as it was. The sum is taken on a float32 of fixed
exponent, ``2**23 + (v + 128) * 2**15``: its 23 mantissa bits are v with 15 bits
of fraction, rounded by the very subtraction. To round v stochastically is then
to add the uniform to those bits and to drop the fraction. No element is
converted to an integer, and eight lanes take some twenty instructions.

Unsigned positions spare the vectoriser Python's negative indices.
"""

# ruff: noqa: PLR0917 - a kernel takes its arguments by position, in C too

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kellet.kernels._jit import inlined, jit
from kellet.kernels.hash import INDEX_FACTOR, MIX_FACTOR_1, MIX_FACTOR_2
from kellet.kernels.table import LARGEST_SCALE, REFIT, SMALLEST_SCALE

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

ONE = np.uint64(1)
BLOCK = np.uint64(64)
FRACTION = np.uint32(15)
UNIFORM = np.uint32(17)  # leaves the uppermost 15 of the uniform's 16 bits: the fraction has 15
STEPS = np.float32(1 << 15)  # of the fraction in one unit
OFFSET = np.float32((1 << 23) + (128 << 15))
FLIP = np.int8(-128)  # exclusive or: from [0, 255] to [-128, 127]
MAGNITUDE = np.int32(0x7FFFFFFF)
INFINITE = int(np.float32(np.inf).view(np.int32))
UPPER, LOWER = np.float32(127), np.float32(57)
SMALLEST, LARGEST = np.float32(SMALLEST_SCALE), np.float32(LARGEST_SCALE)
REFIT_TO = np.float32(REFIT)


def _bits(v: int) -> int:
    """Return the bits of the fixed-exponent float that stands for the integer v."""
    return int(np.float32(OFFSET + v * STEPS).view(np.int32))


ZERO_BITS = _bits(0)
STEP_BITS = np.int32(1 << 15)
LOW_BITS, LOW_KEEP, HIGH_KEEP, HIGH_BITS = _bits(-127), _bits(-57), _bits(57), _bits(127)
INDEX = np.uint32(INDEX_FACTOR)
MIX_1 = np.uint32(MIX_FACTOR_1)
MIX_2 = np.uint32(MIX_FACTOR_2)


@inlined
def _fixed(q: np.int8) -> np.float32:
    """Return the fixed-exponent float of a weight."""
    return np.int32(np.int32(q) * STEP_BITS + ZERO_BITS).view(np.float32)


@inlined
def rounded(bits: np.int32, counter: np.uint32, seed: np.uint32) -> np.int8:
    """Round the fixed-exponent float with these bits; the result still lacks ``FLIP``."""
    # Numba makes 64 bits of each result: without the casts, so would the loop's counter have.
    h = np.uint32(counter ^ seed)
    h = np.uint32(h ^ np.uint32(h >> np.uint32(16)))
    h = np.uint32(h * MIX_1)
    h = np.uint32(h ^ np.uint32(h >> np.uint32(15)))
    h = np.uint32(h * MIX_2)
    # The finaliser's last step leaves the upper half as it is.
    return np.int8(np.uint32(np.uint32(bits) + np.uint32(h >> UNIFORM)) >> FRACTION)


@inlined
def _in_range(low: np.int32, high: np.int32) -> np.bool:
    """Whether a row whose extremes have these bits keeps its scale. NaN is outside on either side.

    Bits of floats of one sign are ordered as the floats are, and a negative one's are negative.
    """
    return low >= LOW_BITS and high <= HIGH_BITS and (low <= LOW_KEEP or high >= HIGH_KEEP)


@inlined
def _refitted(scale: np.float32, top: np.int32) -> np.float32:
    """Return the scale for a row whose largest magnitude, in the old scale's units, has these bits.

    A row of zeros keeps its scale. The result is zero where the row cannot be
    held: it is not finite, or beyond the largest scale.
    """
    if top == 0:
        return scale
    wanted = scale * np.int32(top).view(np.float32) * REFIT_TO
    wanted = wanted if wanted > SMALLEST else SMALLEST
    return wanted if top < INFINITE and wanted <= LARGEST else np.float32(0)


@inlined
def clamped(v: np.float32) -> np.float32:
    v = v if v > -UPPER else -UPPER
    return v if v < UPPER else UPPER


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
    """Return the step on all rows, which gives how many had to stay as they were."""

    @inlined
    def gradient_of(
        q: np.int8, scale: np.float32, g: np.float32, other: np.int8, other_scale: np.float32,
        mu: np.float32, clip: np.float32, decay: np.float32,
    ) -> np.float32:  # fmt: skip
        return corrected(q, scale, given(q, scale, g, clip, decay), other, other_scale, mu)

    @inlined
    def keeps_scale(
        q: I8, scale: np.float32, kept: I8, g: F32, other: I8, other_scale: np.float32,
        start: np.uint64, length: np.uint64,
        lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32,
        seed: np.uint32, first: np.uint32,
    ) -> bool:  # fmt: skip
        """Round the row as if its scale stayed; if it does not, the row is as it was."""
        rate = lr / scale * STEPS
        low = high = np.int32(ZERO_BITS)
        counter = np.uint32((first + np.uint32(start)) * INDEX)
        for j in range(length):
            i = start + j
            gradient = gradient_of(q[i], scale, g[i], other[i], other_scale, mu, clip, decay)
            bits = np.float32(_fixed(q[i]) - rate * gradient).view(np.int32)
            low = min(low, bits)
            high = max(high, bits)
            kept[j] = rounded(bits, counter, seed)
            counter = np.uint32(counter + INDEX)
        if not _in_range(low, high):
            return False
        for j in range(length):
            q[start + j] = kept[j] ^ FLIP
        return True

    @inlined
    def refit(
        q: I8, scales: F32, g: F32, other: I8, other_scale: np.float32,
        r: np.uint64, start: np.uint64, length: np.uint64,
        lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32,
        seed: np.uint32, first: np.uint32,
    ) -> int:  # fmt: skip
        """Step with a new scale; 1 where there is none for the row, which then is as it was."""
        scale = scales[r]
        rate = lr / scale
        top = np.int32(0)
        for i in range(start, start + length):
            gradient = gradient_of(q[i], scale, g[i], other[i], other_scale, mu, clip, decay)
            v = np.float32(q[i]) - rate * gradient
            top = max(top, np.int32(np.float32(v).view(np.int32) & MAGNITUDE))
        scale_now = _refitted(scale, top)
        if scale_now == 0:
            return 1
        factor = scale / scale_now
        scales[r] = scale_now
        counter = np.uint32((first + np.uint32(start)) * INDEX)
        for i in range(start, start + length):
            gradient = gradient_of(q[i], scale, g[i], other[i], other_scale, mu, clip, decay)
            v = np.float32(q[i]) - rate * gradient
            bits = np.float32(clamped(v * factor) * STEPS + OFFSET).view(np.int32)
            q[i] = rounded(bits, counter, seed) ^ FLIP
            counter = np.uint32(counter + INDEX)
        return 0

    @inlined
    def step(
        q: I8, scales: F32, kept: I8, g: F32, other: I8, other_scales: F32, layout: I64,
        lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32,
        seed: np.uint32, first: np.uint32, segments: np.int64,
    ) -> int:  # fmt: skip
        r = start = np.uint64(0)
        left = 0
        for segment in range(segments):
            length = np.uint64(layout[2 * segment + 1])
            for _ in range(layout[2 * segment]):
                scale, other_scale = scales[r], other_scales[r]
                if length == BLOCK:  # code of its own, without remainders
                    fits = keeps_scale(
                        q, scale, kept, g, other, other_scale, start, BLOCK,
                        lr, mu, clip, decay, seed, first,
                    )  # fmt: skip
                else:
                    fits = keeps_scale(
                        q, scale, kept, g, other, other_scale, start, length,
                        lr, mu, clip, decay, seed, first,
                    )  # fmt: skip
                if not fits:
                    left += refit(
                        q, scales, g, other, other_scale, r, start, length,
                        lr, mu, clip, decay, seed, first,
                    )  # fmt: skip
                r += ONE
                start += length
        return left

    return step


_sgd, _sgd_full = _step_of(_as_given, _plain), _step_of(_full, _plain)
_prox, _prox_full = _step_of(_as_given, _proximal), _step_of(_full, _proximal)
_scaffold, _scaffold_full = _step_of(_as_given, _shifted), _step_of(_full, _shifted)
UNUSED = np.float32(0)


@jit
def int8_sgd_step(
    q: I8, scales: F32, kept: I8, g: F32, layout: I64,
    lr: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _sgd(
        q, scales, kept, g, q, scales, layout, lr, UNUSED, UNUSED, UNUSED, seed, first, segments
    )


@jit
def int8_prox_step(
    q: I8, scales: F32, kept: I8, g: F32, x: I8, x_scales: F32, layout: I64,
    lr: np.float32, mu: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _prox(
        q, scales, kept, g, x, x_scales, layout, lr, mu, UNUSED, UNUSED, seed, first, segments
    )


@jit
def int8_scaffold_step(
    q: I8, scales: F32, kept: I8, g: F32, d: I8, d_scales: F32, layout: I64,
    lr: np.float32, seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _scaffold(
        q, scales, kept, g, d, d_scales, layout, lr, UNUSED, UNUSED, UNUSED, seed, first, segments
    )


@jit
def int8_sgd_step_full(
    q: I8, scales: F32, kept: I8, g: F32, layout: I64,
    lr: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _sgd_full(
        q, scales, kept, g, q, scales, layout, lr, UNUSED, clip, decay, seed, first, segments
    )


@jit
def int8_prox_step_full(
    q: I8, scales: F32, kept: I8, g: F32, x: I8, x_scales: F32, layout: I64,
    lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _prox_full(
        q, scales, kept, g, x, x_scales, layout, lr, mu, clip, decay, seed, first, segments
    )


@jit
def int8_scaffold_step_full(
    q: I8, scales: F32, kept: I8, g: F32, d: I8, d_scales: F32, layout: I64,
    lr: np.float32, clip: np.float32, decay: np.float32,
    seed: np.uint32, first: np.uint32, segments: np.int64,
) -> int:  # fmt: skip
    return _scaffold_full(
        q, scales, kept, g, d, d_scales, layout, lr, UNUSED, clip, decay, seed, first, segments
    )
