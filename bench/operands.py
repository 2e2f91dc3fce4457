"""What the benchmarks compute on: vectors drawn once, copied for checking, compared by bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.kernels import Int8Rows

__all__ = ["Draw", "Operands", "close", "copied", "flat", "same_bits"]

Operands = dict[str, Any]

_PERIOD = 1_000_003  # of the drawn values: no divisor of it is a length of rows
_HEADROOM = 1.08  # what a resident row has when its scale was refitted


class Draw:
    """Draws operands of n elements. Values repeat after a million, which no kernel can see."""

    def __init__(self, n: int, seed: int = 20) -> None:
        self.n = n
        self._rng = np.random.default_rng(seed)

    def normal(self, spread: float = 1.0) -> NDArray[np.float32]:
        """Return float32 [n], 64-byte aligned."""
        vector = kernels.aligned(self.n)
        values = self._rng.standard_normal(min(self.n, _PERIOD), np.float32)
        vector[:] = np.resize(values * np.float32(spread), self.n)
        return vector

    def distinct(self) -> NDArray[np.float32]:
        """Return float32 [n] within ±4 of distinct magnitudes, up to 2**24 of them."""
        # Multiplying by an odd number permutes the residues.
        mixed = np.arange(self.n, dtype=np.uint32) * np.uint32(2654435761) & np.uint32(0xFFFFFF)
        vector = kernels.aligned(self.n)
        vector[:] = mixed * np.where(mixed & 128, np.float32(-(2.0**-22)), np.float32(2.0**-22))
        return vector

    def integers(self, bits: int) -> NDArray[np.int64]:
        """Return int64 [n] within ``±2**bits``."""
        vector: NDArray[np.int64] = kernels.aligned(self.n, np.int64)
        values = self._rng.integers(-(1 << bits), 1 << bits, min(self.n, _PERIOD))
        vector[:] = np.resize(values, self.n)
        return vector

    def rows(self, length: int, spread: float = 1.0) -> Int8Rows:
        """Return int8 rows of one length, the last with what remains."""
        layout = kernels.block_layout(self.n, length)
        return kernels.quantise(self.normal(spread), layout, headroom=_HEADROOM)


def copied(operands: Operands) -> Operands:
    """Return the operands in memory of their own, as aligned as the first."""
    return {name: _copied(value) for name, value in operands.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        copy = kernels.aligned(value.size, value.dtype)
        copy[:] = value
        return copy
    return value.copy() if isinstance(value, Int8Rows) else value


def flat(value: Any) -> list[NDArray[Any]]:
    """Return the arrays and numbers in operands and results, one after the other."""
    if value is None:
        return []
    if isinstance(value, Int8Rows):
        return [value.values, value.scales]
    if isinstance(value, dict):
        return [array for each in value.values() for array in flat(each)]
    if isinstance(value, tuple | list):
        return [array for each in value for array in flat(each)]
    if isinstance(value, int):
        return [np.array([value % (1 << 64)], np.uint64)]
    return [np.atleast_1d(np.asarray(value))]


def same_bits(a: Any, b: Any) -> bool:
    """Whether two outcomes have the same types, lengths and bits."""
    left, right = flat(a), flat(b)
    return [x.dtype for x in left] == [x.dtype for x in right] and all(
        np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in zip(left, right, strict=True)
    )


def close(a: Any, b: Any, tolerance: float = 1e-5) -> bool:
    """Whether two outcomes agree within a fraction of each array's largest magnitude."""
    left, right = flat(a), flat(b)
    return len(left) == len(right) and all(
        x.shape == y.shape
        and np.allclose(x, y, rtol=tolerance, atol=tolerance * float(np.abs(y).max(initial=0)))
        for x, y in zip(left, right, strict=True)
    )
