"""int8 rows in whole numbers and fractions: what the kernels must give, from the design's words."""

from __future__ import annotations

import hashlib
from fractions import Fraction

__all__ = ["HEADROOM_TOP", "UNIT", "round_seed", "rounded", "seed32"]

MASK = 0xFFFFFFFF

# float32(HEADROOM_TOP * 1.08) / 127 is 1/64, exactly: a row with this largest value has that unit.
UNIT = Fraction(1, 64)
HEADROOM_TOP = 1.8373842239379883


def mix(h: int) -> int:
    h ^= h >> 16
    h = h * 0x7FEB352D & MASK
    h ^= h >> 15
    h = h * 0x846CA68B & MASK
    return h ^ h >> 16


def seed32(seed: int, step: int) -> int:
    return mix(mix(mix(seed & MASK) ^ seed >> 32) ^ step)


def round_seed(seed: int, device: str, round_: int, purpose: str) -> int:
    text = f"{seed}/{device}/{round_}/{purpose}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


def rounded(v: Fraction, seed: int, step: int, index: int) -> int:
    """floor(v + u), v to 15 bits of fraction, u the hash's 16-bit uniform."""
    uniform = mix(index * 0x9E3779B1 & MASK ^ seed32(seed, step)) >> 16
    fixed = round(v * 2**15)  # ties to even
    return (2 * fixed + uniform) >> 16
