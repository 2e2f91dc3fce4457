"""The counter-based hash behind stochastic rounding and the digest's factors.

Everything is arithmetic modulo 2**32: for the element ``index``,
``h = mix(index * 0x9E3779B1 ^ seed32(seed, step))``; a factor is h with its last bit set.

A uniform has 15 bits, for so many has the fraction that it rounds, and one hash gives
two: the upper one is ``h >> 17``, the lower one the last 15 bits of h. Which one an element
takes depends on its position in its row:

- In a whole group of 64 elements, counted from the row's start, the first 32 take the upper
  uniform of the hash of their own index, the others the lower one of the index 32 before.
- The row's last ``length % 64`` elements take the upper one of their own.

So nothing counts but seed, step, the element's index and its row. ``uniform`` says it in Python.
"""

from __future__ import annotations

__all__ = [
    "GROUP",
    "INDEX_FACTOR",
    "MIX_FACTOR_1",
    "MIX_FACTOR_2",
    "UNIFORM_BITS",
    "at_step",
    "fold",
    "mix",
    "seed32",
    "uniform",
]

INDEX_FACTOR = 0x9E3779B1
MIX_FACTOR_1 = 0x7FEB352D
MIX_FACTOR_2 = 0x846CA68B
GROUP = 64  # elements of a row that 32 hashes serve
UNIFORM_BITS = 15
_MASK = 0xFFFFFFFF


def mix(h: int) -> int:
    """Return the finaliser's value for ``h``, both in [0, 2**32)."""
    h ^= h >> 16
    h = h * MIX_FACTOR_1 & _MASK
    h ^= h >> 15
    h = h * MIX_FACTOR_2 & _MASK
    return h ^ h >> 16


def uniform(index: int, position: int, length: int, seed32: int) -> int:
    """Return the uniform of an element at a position of a row of ``length``, in [0, 2**15)."""
    second = position < length - length % GROUP and position % GROUP >= GROUP // 2
    at = index - (GROUP // 2 if second else 0)
    h = mix(at * INDEX_FACTOR & _MASK ^ seed32)
    return h & (1 << UNIFORM_BITS) - 1 if second else h >> 32 - UNIFORM_BITS


def seed32(seed: int, step: int = 0) -> int:
    """Fold a 64-bit ``seed`` and a ``step`` (both >= 0) into the 32 bits that a kernel takes."""
    return at_step(fold(seed), step)


def fold(seed: int) -> int:
    """Return the part of ``seed32`` that does not change from step to step."""
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed must lie in [0, 2**64), not {seed}")
    return mix(mix(seed & _MASK) ^ seed >> 32)


def at_step(folded: int, step: int) -> int:
    """Return ``seed32(seed, step)`` from ``fold(seed)``."""
    if not 0 <= step <= _MASK:
        raise ValueError(f"step must lie in [0, 2**32), not {step}")
    return mix(folded ^ step)
