"""Inputs for every kernel of the table, and the equality of the numeric contract."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np

from kellet.kernels import reference
from kellet.kernels.table import GRID_LIMIT, KERNELS, ROOM

__all__ = [
    "BACKENDS",
    "arguments",
    "clear_room",
    "parameters",
    "random_bits",
    "random_layout",
    "run",
    "same_bits",
    "sizes",
]

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
    if kind in ("i1", "u4"):
        return rng.integers(0, 256, n * int(kind[1]), dtype=np.uint8).view(kind)
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


def parameters(kernel: str) -> list[str]:
    """Return the names of a kernel's arrays and scalars."""
    return list(inspect.signature(getattr(reference, KERNELS[kernel].function)).parameters)


def random_layout(n: int, rng: np.random.Generator) -> Any:
    """Return pairs of (rows, their length) that cover n elements: blocks of 64, and any others."""
    pairs: list[tuple[int, int]] = []
    while n > 0:
        length = min(n, int(rng.choice([1, 3, 8, 64, 64, 100, 129, 500])))
        rows = int(rng.integers(1, n // length + 1)) if length < 500 else 1
        pairs.append((rows, length))
        n -= rows * length
    return np.array(pairs, np.int64).reshape(-1)


def sizes(kernel: str, n: int, layout: Any) -> dict[str, int]:
    """Return what the table's names of lengths come to, and the scalars that are lengths."""
    if kernel == "squares_of_blocks":
        n = min(n, 9)
    lengths = {"n": n, "1024*n": 1024 * n, "2048": 2048, "k": max(1, n // 3) if n else 0}
    lengths |= {"2*segments": layout.size, "segments": layout.size // 2}
    lengths |= {"rows": int(layout[::2].sum()), "room": int(layout[1::2].max(initial=ROOM))}
    return lengths


def arguments(
    kernel: str, n: int, seed: int, *, finite: bool
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the arrays and the scalars of one call that keeps the kernel's conditions.

    Infinities and NaN swallow a sum, so an order of summation shows in finite values alone.
    """
    rng = np.random.default_rng(seed)
    signature = KERNELS[kernel]
    layout = random_layout(n, rng)
    lengths = sizes(kernel, n, layout)
    names = parameters(kernel)
    kinds = zip(signature.arrays, signature.lengths or ["n"] * len(signature.arrays), strict=True)
    arrays = [random_bits(kind, lengths[size], rng, finite=finite) for kind, size in kinds]
    named = dict(zip(names, arrays, strict=False))
    scalars = [
        lengths.get(name) if name in lengths else _SCALARS[kind](rng)
        for name, kind in zip(names[len(arrays) :], signature.scalars, strict=True)
    ]
    if "layout" in named:
        named["layout"][:] = layout
        _make_int8_rows(named, dict(zip(names[len(arrays) :], scalars, strict=True)), rng, finite)
    if "counts" in named:
        named["counts"][:] = 0
    if signature.function in ("to_grid", "accumulate"):  # off_grid has refused the others
        values = named["v"]
        values[~(np.abs(values) < GRID_LIMIT)] = 16383.9
    if signature.function == "accumulate_int8":
        named["scales"][~(np.abs(named["scales"]) < GRID_LIMIT / 128)] = 127.9
    return tuple(arrays), tuple(scalars)


def _make_int8_rows(
    named: dict[str, Any], scalars: dict[str, Any], rng: np.random.Generator, finite: bool
) -> None:
    """Make most scales fit to be used, and steps of all sizes against them."""
    for name, scales in named.items():
        usual = (10.0 ** rng.uniform(-6, 1, scales.size)).astype(scales.dtype)
        if name.endswith("scales"):
            scales[:] = np.where(finite or rng.random(scales.size) < 0.7, usual, scales)
    if "lr" in scalars and "scales" in named:
        layout, g = named["layout"], named["g"]
        row = np.repeat(named["scales"], np.repeat(layout[1::2], layout[::2]))
        with np.errstate(all="ignore"):
            size = row / np.float32(scalars["lr"] * scalars.get("clip", 1.0))
            size *= 10.0 ** rng.uniform(-3, 2)
            near = (rng.standard_normal(g.size) * size).astype(np.float32)
        g[:] = np.where(finite or rng.random(g.size) < 0.99, near, g)


def run(
    backend: Any, kernel: str, arrays: tuple[Any, ...], scalars: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel's result and its arrays afterwards; the given ones stay as they are."""
    own = tuple(array.copy() for array in arrays)
    result = backend.bind(kernel, own)(*scalars)
    clear_room(kernel, own)
    return result, own


def clear_room(kernel: str, arrays: tuple[Any, ...]) -> None:
    """Make zeros of what a kernel only works in: the contract says nothing of its contents."""
    for name, array in zip(parameters(kernel), arrays, strict=False):
        if name == "room":
            array[:] = 0


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
