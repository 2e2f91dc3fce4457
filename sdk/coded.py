"""Coded vectors, decoded a part at a time.

A control of five million float32 takes 20 MB, the int8 rows that it came in a quarter
of that. What ``decode_vector`` gives at once, these give for any slice, to the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import Int8Rows
from kellet.sdk.controls import FloatVector
from kellet.sdk.errors import ProtocolError
from kellet.sdk.protocol.vectors import Codec, decode_vector

__all__ = ["RowParts", "SparseParts", "decode_parts"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Raw = bytes | memoryview


def decode_parts(codec: Codec, raw: Raw, layout: I64, n: int) -> FloatVector:
    """The vector [n] in ``raw``, from which it is read in parts, as long as it lives.

    Raises ``ProtocolError`` as ``decode_vector``.
    """
    if codec == "q8":
        return RowParts(raw, layout, n)
    if codec == "topk":
        return SparseParts(raw, layout, n)
    return decode_vector(codec, raw, layout, n)


class RowParts:
    """int8 rows: ``scales`` f4 [rows], then ``values`` i1 [n]."""

    dtype = np.dtype(np.float32)

    def __init__(self, raw: Raw, layout: I64, n: int) -> None:
        rows = int(layout[::2].sum())
        if len(raw) != 4 * rows + n:
            raise ProtocolError(f"int8 rows of {n} values in {len(raw)} bytes")
        self._scales = np.frombuffer(raw, "<f4", rows)
        self._values = np.frombuffer(raw, "<i1", n, 4 * rows)
        if n and self._values.min() < -127:
            raise ProtocolError("a value of -128 in int8 rows", why="they hold -127 to 127")
        try:
            Int8Rows(self._values, self._scales, layout)
        except ValueError as error:
            raise ProtocolError("int8 rows with wrong scales", why=str(error)) from None
        self._segments = layout.reshape(-1, 2).tolist()
        self.shape = (n,)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> F32:
        start, stop, _ = part.indices(len(self))
        out = self._values[start:stop].astype(np.float32)
        row = begin = 0
        for rows, length in self._segments:
            end = begin + rows * length
            low, high = max(start, begin), min(stop, end)
            if low < high:
                first, last = (low - begin) // length, -(-(high - begin) // length)
                scales = np.repeat(self._scales[row + first : row + last], length)
                skipped = low - begin - first * length
                out[low - start : high - start] *= scales[skipped : skipped + high - low]
            row, begin = row + rows, end
        return out


class SparseParts:
    """The largest elements: ``index`` u4 [k], then ``value`` f4 [k]; zero elsewhere."""

    dtype = np.dtype(np.float32)

    def __init__(self, raw: Raw, layout: I64, n: int) -> None:
        decode_vector("topk", raw, layout, n)  # which says what is wrong
        half = len(raw) // 2
        self._index = np.frombuffer(raw, "<u4", half // 4)
        self._value = np.frombuffer(raw, "<f4", half // 4, half)
        self.shape = (n,)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> F32:
        start, stop, _ = part.indices(len(self))
        first, last = np.searchsorted(self._index, [start, stop])
        out = np.zeros(stop - start, np.float32)
        out[self._index[first:last] - np.uint32(start)] = self._value[first:last]
        return out
