"""Vectors held as int8 with a float32 scale a row.

A row's elements are ``values * scale``, values in [-127, 127]; the matrices of
a model have their output rows as rows, or the whole vector is cut into blocks of 64.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import _checks
from kellet.kernels._backend import active
from kellet.kernels.hash import seed32
from kellet.kernels.table import LARGEST_SCALE, SMALLEST_SCALE

__all__ = [
    "Int8Rows",
    "RowsPart",
    "block_layout",
    "dequantise",
    "parts_of",
    "quantise",
    "row_layout",
]

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
I64 = NDArray[np.int64]

_MAX_SIZE = 1 << 32  # an index of the hash has 32 bits


@dataclass(frozen=True, eq=False)
class Int8Rows:
    """A vector [n] of ``values[j] * scales[row of j]``, the rows one after the other.

    ``values`` int8 [n], ``scales`` float32 [rows] within [2**-40, 2**80],
    ``layout`` int64 [2*segments]: pairs of (rows, their length), which cover
    both. What does not fit together is refused with TypeError or ValueError.
    """

    values: I8
    scales: F32
    layout: I64

    def __post_init__(self) -> None:
        _checks.array("values", self.values, np.int8)
        _checks.array("scales", self.scales, np.float32)
        rows, held = _extent(self.layout)
        if (rows, held) != (self.scales.size, self.values.size):
            raise ValueError(
                f"layout is of {rows} rows and {held} values, "
                f"not of {self.scales.size} and {self.values.size}"
            )
        self.check_scales("scales")

    def check_scales(self, name: str) -> None:
        """Refuse scales out of bounds, NaN among them."""
        fit = (self.scales >= SMALLEST_SCALE) & (self.scales <= LARGEST_SCALE)
        if not fit.all():
            row = int(np.flatnonzero(~fit)[0])
            raise ValueError(f"{name}[{row}] = {self.scales[row]} is not within [2**-40, 2**80]")

    @property
    def size(self) -> int:
        """How many elements the vector has."""
        return self.values.size

    def copy(self) -> Int8Rows:
        """Return the same vector in memory of its own: a round's start, say."""
        return Int8Rows(self.values.copy(), self.scales.copy(), self.layout)


def _extent(layout: I64) -> tuple[int, int]:
    """Return how many rows and how many values a layout covers, once it has been found fit."""
    _checks.array("layout", layout, np.int64)
    if layout.size % 2 or (layout < 1).any():
        raise ValueError("layout must be pairs of (rows, their length), each at least 1")
    pairs = layout.reshape(-1, 2).tolist()
    held = sum(rows * length for rows, length in pairs)
    if held >= _MAX_SIZE:
        raise ValueError(f"layout covers {held} values; at most {_MAX_SIZE - 1} can be held")
    return sum(rows for rows, _ in pairs), held


def row_layout(shapes: Iterable[tuple[int, ...]]) -> I64:
    """Return the layout that gives each tensor's first axis its rows, for tensors in order.

    A tensor of one dimension is one row. Raises ValueError for one without elements.
    """
    pairs = []
    for shape in shapes:
        rows = shape[0] if len(shape) > 1 else 1
        length = int(np.prod(shape[1:] if len(shape) > 1 else shape, dtype=np.int64))
        if rows < 1 or length < 1:
            raise ValueError(f"a tensor of shape {tuple(shape)} has no elements")
        pairs.append((rows, length))
    return np.array(pairs, np.int64).reshape(-1)


def block_layout(n: int, length: int = 64) -> I64:
    """Return the layout of n elements in blocks, the last one with what remains.

    Blocks of 64 are the fastest of the short ones.
    """
    n = _checks.integer("n", n, 0, _MAX_SIZE)
    length = _checks.integer("length", length, 1, _MAX_SIZE)
    pairs = [(n // length, length), (1, n % length)]
    return np.array([pair for pair in pairs if 0 not in pair], np.int64).reshape(-1)


def quantise(
    v: F32, layout: I64, *, headroom: float = 1.0, seed: int | None = None, step: int = 0
) -> Int8Rows:
    """Return float32 values [n] as int8 rows.

    ``scale = max|v|*headroom/127`` of each row, and at least 2**-40: a row of zeros has
    that. Values are rounded to the nearest, ties to even; with a ``seed`` they are
    rounded stochastically, by the hash of (seed, step, index). ``headroom``, from 1 to
    127, leaves room for a resident row to grow. Raises ValueError for a row that is not finite,
    or so large that its scale would exceed 2**80.
    """
    _checks.array("v", v, np.float32)
    count, held = _extent(layout)
    if held != v.size:
        raise ValueError(f"layout covers {held} values, not v's {v.size}")
    headroom = _checks.number("headroom", headroom)
    if not 1 <= headroom <= 127:
        raise ValueError(f"headroom must lie in [1, 127], not {headroom}")
    rows = Int8Rows(np.zeros(held, np.int8), np.ones(count, np.float32), layout.copy())
    segments = layout.size // 2
    if seed is None:
        run = active().bind("quantise", (rows.values, rows.scales, v, rows.layout))
        bad = run(headroom, segments)
    else:
        run = active().bind("quantise_stochastic", (rows.values, rows.scales, v, rows.layout))
        bad = run(headroom, seed32(seed, step), segments)
    if bad >= 0:
        raise ValueError(f"row {bad} of v is not finite, or its scale would exceed 2**80")
    return rows


def dequantise(rows: Int8Rows, out: F32 | None = None) -> F32:
    """Return ``float32(values) * scale`` [n]."""
    if out is None:
        out = np.empty(rows.size, np.float32)
    _checks.array("out", out, np.float32, written=True)
    _checks.same_length(out=out, values=rows.values)
    _checks.apart({"out": out}, {"values": rows.values, "scales": rows.scales})
    segments = rows.layout.size // 2
    active().bind("dequantise", (out, rows.values, rows.scales, rows.layout))(segments)
    return out


class RowsPart(NamedTuple):
    """Some rows after one another: which, which elements, and the layout of these alone."""

    rows: slice
    elements: slice
    layout: I64


def parts_of(layout: I64, count: int) -> list[RowsPart]:
    """Cut a layout between rows into at most ``count`` parts of about the same size."""
    pairs = layout.reshape(-1, 2).tolist()
    share = -(-sum(rows * length for rows, length in pairs) // count)
    parts: list[list[list[int]]] = [[]]
    room = share
    for rows, length in pairs:
        while rows:
            if room <= 0:
                parts.append([])
                room = share
            taken = min(rows, -(-room // length))
            parts[-1].append([taken, length])
            rows -= taken  # noqa: PLW2901
            room -= taken * length
    cut = []
    row = start = 0
    for part in parts:
        some = np.array(part, np.int64).reshape(-1)
        rows, elements = int(some[::2].sum()), int((some[::2] * some[1::2]).sum())
        cut.append(RowsPart(slice(row, row + rows), slice(start, start + elements), some))
        row, start = row + rows, start + elements
    return cut
