"""The counter-based hash behind stochastic rounding and the digest's signs.

Everything is arithmetic modulo 2**32: for the element ``index``,
``h = mix(index * 0x9E3779B1 ^ seed32(seed, step))``; a sign is bit 31 of h
(set means -1), the 16-bit uniform is ``h >> 16``.
"""

from __future__ import annotations

__all__ = ["INDEX_FACTOR", "MIX_FACTOR_1", "MIX_FACTOR_2", "at_step", "fold", "mix", "seed32"]

INDEX_FACTOR = 0x9E3779B1
MIX_FACTOR_1 = 0x7FEB352D
MIX_FACTOR_2 = 0x846CA68B
_MASK = 0xFFFFFFFF


def mix(h: int) -> int:
    """Return the finaliser's value for ``h``, both in [0, 2**32)."""
    h ^= h >> 16
    h = h * MIX_FACTOR_1 & _MASK
    h ^= h >> 15
    h = h * MIX_FACTOR_2 & _MASK
    return h ^ h >> 16


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
