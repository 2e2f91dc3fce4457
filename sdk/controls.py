"""Control variates on a device, a part at a time.

At five million parameters c_i alone takes 40 MB. So the shift of a round is made,
and the change of c_i computed, in parts of some 65,536 elements; c and c_i may be
arrays, or anything that gives an array for a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.kernels import Int8Rows
from kellet.sdk.heap import CHUNK

__all__ = [
    "Controls",
    "Derived",
    "FloatVector",
    "Parts",
    "Piece",
    "Sent",
    "VectorBytes",
    "Zeros",
    "pieces",
    "quantised_shift",
    "rows_of",
]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

Element_co = TypeVar("Element_co", bound=np.generic, covariant=True)


class Parts(Protocol[Element_co]):
    """A vector that is read in parts; every array is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[Element_co]: ...


@dataclass(frozen=True, slots=True)
class VectorBytes:
    """The bytes of a vector as ``dtype`` (``<f4``, ``<i8``), made where they are read.

    Slices are of whole elements.
    """

    vector: Parts[Any]
    dtype: str

    def __len__(self) -> int:
        return self._size * len(self.vector)

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(len(self))
        some = self.vector[start // self._size : stop // self._size]
        return some.astype(self.dtype, copy=False).tobytes()

    @property
    def _size(self) -> int:
        return np.dtype(self.dtype).itemsize


class FloatVector(Parts[np.float32], Protocol):
    """A float32 vector that is read in parts."""

    @property
    def dtype(self) -> np.dtype[np.float32]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Controls:
    """What a round's correction is made of, both of [n_train].

    ``c``: float32, the control decoded from the announcement, or ``Zeros`` where none travels;
    ``c_i``: int64 on the grid.
    """

    c: Parts[np.float32]
    c_i: Parts[np.int64]

    @property
    def corrected(self) -> bool:
        """Whether there is a c to correct steps by."""
        return not isinstance(self.c, Zeros)

    def shift(self, part: slice, out: F32 | None = None) -> F32:
        """d = float32(c - c_i) of some elements."""
        return kernels.control_shift(self.c[part], self.c_i[part], out)


@dataclass(frozen=True, slots=True)
class Zeros:
    """A float32 vector of n zeros, of which no more exists than is read."""

    n: int

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, part: slice) -> F32:
        start, stop, _ = part.indices(self.n)
        return np.zeros(stop - start, np.float32)


Change = Callable[[F32, F32, float], I64]


@dataclass(frozen=True, slots=True)
class Derived:
    """The change of c_i as an algorithm derives it, int64 on the grid, computed where it is read.

    ``change`` of (c, delta_y, rate_sum), ``delta_y`` the decoded update: what the server
    computes, too, where delta_c does not travel.
    """

    change: Change
    c: Parts[np.float32]
    delta_y: Parts[np.float32]
    rate_sum: float

    def __len__(self) -> int:
        return len(self.c)

    def __getitem__(self, part: slice) -> I64:
        part = slice(*part.indices(len(self))[:2])  # delta_y goes on with the buffers
        return self.change(self.c[part], self.delta_y[part], self.rate_sum)


@dataclass(frozen=True, slots=True)
class Sent:
    """The change of c_i as it will be decoded, int64 on the grid.

    c_i follows what the server reads, not what was computed: both sums stay equal.
    """

    decoded: Parts[np.float32]

    def __len__(self) -> int:
        return len(self.decoded)

    def __getitem__(self, part: slice) -> I64:
        return kernels.to_grid(self.decoded[part])


@dataclass(frozen=True, slots=True)
class Piece:
    """Some whole rows of an int8 vector: which, which elements of it, and where in the plan's.

    ``layout`` is that of these rows alone.
    """

    rows: slice
    elements: slice
    layout: I64
    flat: slice


def pieces(
    tensors: Iterable[tuple[int, tuple[int, int]]],
) -> tuple[Piece, ...]:
    """Cut tensors held as int8 rows, one after the other, between rows.

    For each tensor: its offset in the plan's flat vector, and its (rows, their length).
    """
    cut: list[Piece] = []
    row = element = 0
    for offset, (rows, length) in tensors:
        some = max(1, CHUNK // length)
        for first in range(0, rows, some):
            count = min(some, rows - first)
            flat = offset + first * length
            cut.append(
                Piece(
                    slice(row, row + count),
                    slice(element, element + count * length),
                    np.array([count, length]),
                    slice(flat, flat + count * length),
                )
            )
            row += count
            element += count * length
    return tuple(cut)


def rows_of(held: Int8Rows, piece: Piece) -> Int8Rows:
    """A piece of a vector, as a view."""
    return Int8Rows(held.values[piece.elements], held.scales[piece.rows], piece.layout)


def quantised_shift(controls: Controls, cut: Iterable[Piece], layout: I64) -> Int8Rows:
    """Q(d), the round's shift as int8 rows of this layout, each value rounded to the nearest.

    Raises ``ValueError`` where it is not finite.
    """
    pairs = layout.reshape(-1, 2)
    values: NDArray[np.int8] = kernels.aligned(int(pairs.prod(axis=1).sum()), np.int8)
    scales = np.ones(int(pairs[:, 0].sum()), np.float32)
    for piece in cut:
        some = kernels.quantise(controls.shift(piece.flat), piece.layout)
        values[piece.elements] = some.values
        scales[piece.rows] = some.scales
    return Int8Rows(values, scales, layout)
