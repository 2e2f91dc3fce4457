"""Stochastic rounding by a counter-based hash, compiled by Numba: two uniforms out of one hash.

A value v in [-128, 128) is held as a float32 of fixed exponent, ``2**23 + (v + 128) * 2**15``:
its 23 mantissa bits are v with 15 bits of fraction, rounded by the sum that made it. To round v
stochastically is then to add a uniform of 15 bits to those bits and to drop the fraction. No
element is converted to an integer.

The hash is half of the work, so one serves two elements. Within a row, counted from its start,
each whole group of 64 is drawn for so: element k < 32 takes the upper uniform of the hash of its
index, element k + 32 the lower one of the same hash. Of a row's last ``length % 64`` elements
each takes the upper uniform of its own. ``hash`` defines both.

Unsigned positions spare the vectoriser Python's negative indices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kellet.kernels._jit import inlined
from kellet.kernels.hash import GROUP as GROUP_SIZE
from kellet.kernels.hash import INDEX_FACTOR, MIX_FACTOR_1, MIX_FACTOR_2, UNIFORM_BITS

__all__ = [
    "GROUP",
    "LIMIT",
    "OFFSET",
    "STEPS",
    "Position",
    "clamped",
    "hashed",
    "over_row",
    "rounded",
    "uniform_of",
]

Position = np.uint64 | int  # a range over unsigned numbers gives unsigned ones, once compiled

GROUP = np.uint64(GROUP_SIZE)
HALF = np.uint64(GROUP_SIZE // 2)
WHOLE_GROUPS = ~(GROUP - np.uint64(1))
ZERO = np.uint64(0)
GROUP_BITS = np.uint64(GROUP_SIZE.bit_length() - 1)
STEPS = np.float32(1 << UNIFORM_BITS)  # of the fraction in one unit
OFFSET = np.float32((1 << 23) + (128 << UNIFORM_BITS))
LESS_OFFSET = np.uint32((1 << 32) - int(OFFSET.view(np.int32)))  # its low bits are zero
FRACTION = np.int32(UNIFORM_BITS)
UPPER_SHIFT = np.uint32(32 - UNIFORM_BITS)
LOWER_MASK = np.uint32((1 << UNIFORM_BITS) - 1)
LIMIT = np.float32(127)
INDEX = np.uint32(INDEX_FACTOR)
HALF_INDEX = np.uint32(GROUP_SIZE // 2 * INDEX_FACTOR % (1 << 32))
MIX_1 = np.uint32(MIX_FACTOR_1)
MIX_2 = np.uint32(MIX_FACTOR_2)


@inlined
def hashed(counter: np.uint32, seed: np.uint32) -> np.uint32:
    """Return the hash of an index, given as ``counter = index*INDEX``."""
    # Numba makes 64 bits of each result: without the casts, so would the loop's counter have.
    h = np.uint32(counter ^ seed)
    h = np.uint32(h ^ np.uint32(h >> np.uint32(16)))
    h = np.uint32(h * MIX_1)
    h = np.uint32(h ^ np.uint32(h >> np.uint32(15)))
    h = np.uint32(h * MIX_2)
    # The lower uniform needs this step: without it its last bits hang together from step to step.
    return np.uint32(h ^ np.uint32(h >> np.uint32(16)))


@inlined
def _upper(h: np.uint32) -> np.uint32:
    """Return the upper uniform, less the bits of OFFSET."""
    return np.uint32(np.uint32(h >> UPPER_SHIFT) | LESS_OFFSET)


@inlined
def _lower(h: np.uint32) -> np.uint32:
    """Return the lower uniform, less the bits of OFFSET."""
    return np.uint32(np.uint32(h & LOWER_MASK) | LESS_OFFSET)


@inlined
def rounded(v: np.float32, uniform: np.uint32) -> np.int32:
    """Round a value of fixed exponent; one that is not comes out beyond [-128, 127]."""
    bits = np.uint32(np.uint32(np.float32(v).view(np.uint32)) + uniform)
    return np.int32(np.uint32(bits).view(np.int32) >> FRACTION)


@inlined
def clamped(v: np.float32) -> np.float32:
    v = v if v > -LIMIT else -LIMIT
    return v if v < LIMIT else LIMIT


@inlined
def uniform_of(j: Position, length: np.uint64, first: np.uint32, seed: np.uint32) -> np.uint32:
    """Return what ``over_row`` gives for one position alone, with a hash to itself."""
    second = (j & HALF) != 0 and j < (length & WHOLE_GROUPS)
    index = np.uint32(first + np.uint32(j - (HALF if second else ZERO)))
    h = hashed(np.uint32(index * INDEX), seed)
    return _lower(h) if second else _upper(h)


def over_row(each: Callable[[Any, Position, np.uint32], None]) -> Callable[..., None]:
    """Return the loop ``each(operands, j, uniform)`` over the positions j of a row.

    ``first`` is the index of the row's first element in the hash.
    """

    @inlined
    def over(operands: Any, length: np.uint64, first: np.uint32, seed: np.uint32) -> None:
        counter = np.uint32(first * INDEX)
        done = np.uint64(0)
        for _ in range(length >> GROUP_BITS):
            for k in range(HALF):
                h = hashed(counter, seed)
                each(operands, done + k, _upper(h))
                each(operands, done + k + HALF, _lower(h))
                counter = np.uint32(counter + INDEX)
            counter = np.uint32(counter + HALF_INDEX)
            done += GROUP
        for j in range(done, length):
            each(operands, j, _upper(hashed(counter, seed)))
            counter = np.uint32(counter + INDEX)

    return over
