"""Inputs for every kernel of the table, and the equality of the numeric contract."""

from __future__ import annotations

from typing import Any

import numpy as np

from kellet.kernels.table import GRID_LIMIT, KERNELS

__all__ = ["BACKENDS", "arguments", "random_bits", "run", "same_bits"]

BACKENDS = ("numpy", "numba", "compiled")

_SCALARS = {
    "f4": lambda rng: float(np.float32(10.0 ** rng.uniform(-8, 4))),
    "f8": lambda rng: float(10.0 ** rng.uniform(-300, 300)),
    "i8": lambda rng: int(rng.integers(1 - 2**31, 2**31)),
    "u4": lambda rng: int(rng.integers(2**32)),
}
# Single precision's corners: signed zeros, denormals, huge values, infinities, NaN.
_CORNERS = [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38]
_CORNERS += [float("inf"), float("-inf"), float("nan"), 1.0, -1.0, 16384.0, -16384.0]


def random_bits(kind: str, n: int, rng: np.random.Generator, *, finite: bool = False) -> Any:
    """Return n elements of a type: any bit pattern, or floats of many sizes but all finite."""
    if kind[0] != "f":
        # The shift mixes small numbers with large ones.
        wide = rng.integers(0, 2**64, n, dtype=np.uint64) >> rng.integers(0, 64, n, dtype=np.uint64)
        return wide if kind[0] == "u" else wide.view(np.int64) * rng.choice([1, -1], n)
    plain = rng.standard_normal(n) * 10.0 ** rng.uniform(-12, 6, n)
    if finite:
        return plain.astype(kind)
    raw = rng.integers(0, 256, n * int(kind[1]), dtype=np.uint8).view(kind)
    chosen = rng.integers(0, 4, n)
    with np.errstate(all="ignore"):
        corner = rng.choice(_CORNERS, n)
        return np.select([chosen < 2, chosen == 2], [plain, raw], corner).astype(kind)


def arguments(
    kernel: str, n: int, seed: int, *, finite: bool
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the arrays and the scalars of one call that keeps the kernel's conditions.

    Infinities and NaN swallow a sum, so an order of summation shows in finite values alone.
    """
    rng = np.random.default_rng(seed)
    signature = KERNELS[kernel]
    arrays = tuple(random_bits(kind, n, rng, finite=finite) for kind in signature.arrays)
    if signature.function == "to_grid":  # off_grid has refused the others
        values = arrays[1]
        values[~(np.abs(values) < GRID_LIMIT)] = 16383.9
    return arrays, tuple(_SCALARS[kind](rng) for kind in signature.scalars)


def run(
    backend: Any, kernel: str, arrays: tuple[Any, ...], scalars: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel's result and its arrays afterwards; the given ones stay as they are."""
    own = tuple(array.copy() for array in arrays)
    return backend.bind(kernel, own)(*scalars), own


def same_bits(a: Any, b: Any) -> bool:
    """Whether two values or arrays have the same bits, or are NaN at the same places."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    nan = np.isnan(a)
    return bool(
        np.array_equal(nan, np.isnan(b))
        and np.where(nan, 0, a).tobytes() == np.where(nan, 0, b).tobytes()
    )
