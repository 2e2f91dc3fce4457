"""The codecs of vectors: how a model, a control or an update's vectors travel.

==== ====================================== =============================================
f32  ``v`` f4 [n]                           as it is
q8   ``scales`` f4 [rows], ``values`` i1    ``values * scales`` of their row, the rows of
     [n]                                    ``kernels.row_layout`` over the tensors
topk ``index`` u4 [k], ``value`` f4 [k]     the k largest by magnitude, zero elsewhere;
                                            k = ceil(share * n), indices ascending
==== ====================================== =============================================

Pure functions. A vector of known shape has one size in each codec, so that nothing is
allocated for what a message claims.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.errors import ProtocolError

if TYPE_CHECKING:
    from kellet.sdk.plan.manifest import TensorSpec

__all__ = ["CODECS", "Codec", "Shapes", "decode_vector", "encode_vector", "vector_limit"]

Codec = Literal["f32", "q8", "topk"]
CODECS: tuple[Codec, ...] = ("f32", "q8", "topk")

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """What a plan says of its updates: the vectors' lengths, and their rows.

    ``update`` and ``train``: int64 layouts (``kernels.row_layout``) of the first
    ``n_update`` and ``n_train`` elements.
    """

    n_update: int
    n_train: int
    update: I64
    train: I64

    @classmethod
    def of(cls, tensors: Iterable[TensorSpec]) -> Self:
        """The shapes of a manifest's tensors."""
        moved = [t for t in tensors if t.role != "frozen"]
        trained = [t for t in moved if t.role == "train"]
        return cls(
            sum(t.size for t in moved),
            sum(t.size for t in trained),
            kernels.row_layout(t.shape for t in moved),
            kernels.row_layout(t.shape for t in trained),
        )


def vector_limit(codec: Codec, n: int, layout: I64, share: float = 0.0) -> int:
    """Bytes of a vector [n] in ``codec``: no more, and no less."""
    match codec:
        case "f32":
            return 4 * n
        case "q8":
            return 4 * _rows(layout) + n
        case "topk":
            return 8 * _largest(n, share)


def encode_vector(
    codec: Codec, v: F32, layout: I64, *, seed: int | None = None, share: float = 0.0
) -> bytes:
    """``v`` (float32 [n]) as it travels.

    ``q8`` rounds stochastically by the hash of (seed, index), to the nearest without a
    seed. Raises ``ValueError`` for what ``q8`` and ``topk`` cannot hold: values that are not
    finite, or a row beyond a scale of 2^80.
    """
    match codec:
        case "f32":
            return v.astype("<f4", copy=False).tobytes()
        case "q8":
            rows = kernels.quantise(v, layout, seed=seed)
            return b"".join([rows.scales.astype("<f4", copy=False).data, rows.values.data])
        case "topk":
            index, value = kernels.top_k(v, _largest(len(v), share))
            return index.astype("<u4", copy=False).tobytes() + value.astype("<f4").tobytes()


def decode_vector(codec: Codec, raw: bytes | memoryview, layout: I64, n: int) -> F32:
    """The vector [n] in ``raw``, read-only; of ``f32`` a view.

    Raises ``ProtocolError`` where the length is another, a scale is not within
    [2^-40, 2^80], a value is -128, or indices do not ascend below n. Values of
    ``f32`` and ``topk`` may be anything that a float32 holds.
    """
    match codec:
        case "f32":
            _expect(len(raw), 4 * n)
            out = _elements(raw, "<f4")
        case "q8":
            _expect(len(raw), 4 * _rows(layout) + n)
            out = _from_rows(memoryview(raw), layout)
        case "topk":
            if len(raw) % 8 or not 8 <= len(raw) <= 8 * n:
                raise ProtocolError(f"the largest of {n} values in {len(raw)} bytes")
            out = _from_largest(memoryview(raw), n)
    out.flags.writeable = False
    return out


def _from_rows(raw: memoryview, layout: I64) -> F32:
    start = 4 * _rows(layout)
    scales, values = _elements(raw[:start], "<f4"), _elements(raw[start:], "<i1")
    if values.min() < -127:
        raise ProtocolError("a value of -128 in int8 rows", why="they hold -127 to 127")
    try:
        rows = kernels.Int8Rows(values, scales, layout)
    except ValueError as error:
        raise ProtocolError("int8 rows with wrong scales", why=str(error)) from None
    return kernels.dequantise(rows)


def _from_largest(raw: memoryview, n: int) -> F32:
    half = len(raw) // 2
    index, value = _elements(raw[:half], "<u4"), _elements(raw[half:], "<f4")
    if index[-1] >= n or not np.all(index[1:] > index[:-1]):
        raise ProtocolError(f"indices that do not ascend below {n}")
    out: F32 = np.zeros(n, np.float32)
    out[index] = value
    return out


def _elements(raw: bytes | memoryview, dtype: str) -> NDArray[Any]:
    """The elements where they lie; moved where the processor could not read them there."""
    there = np.frombuffer(raw, dtype)
    return there if there.flags.aligned else there.copy()


def _rows(layout: I64) -> int:
    return int(layout[::2].sum())


def _largest(n: int, share: float) -> int:
    """k of n: rounded up, in float64, on both sides alike."""
    return min(n, max(1, math.ceil(share * n)))


def _expect(size: int, wanted: int) -> None:
    if size != wanted:
        raise ProtocolError(
            f"a vector of {size} bytes", why=f"its shape and codec ask for {wanted}"
        )
