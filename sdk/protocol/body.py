"""The body of an update: a header and raw vectors (docs/protocol.md)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from kellet.sdk.errors import ProtocolError
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.limits import HEADER_BYTES, VERSION
from kellet.sdk.protocol.messages import (
    FLOAT,
    Bytes16,
    Bytes32,
    Count,
    DeltaC,
    Scheme,
    Sequence64,
)
from kellet.sdk.protocol.vectors import Codec, Shapes, decode_vector, vector_limit

__all__ = ["Body", "UpdateHeader", "body_limit", "decode_body", "encode_body", "leave_limit"]

_PREFIX = struct.Struct("<4sI")
_MAGIC = b"KLU1"
_ALIGNMENT = 16  # of the first vector; a second one is read from multiples of 4

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Raw = bytes | memoryview | NDArray[Any]
Share = Annotated[float, Meta(ge=0, le=1)]


class UpdateHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What an update says of itself."""

    v: Literal[1] = VERSION
    kind: Literal["update", "leave"]
    device: Annotated[str, Meta(max_length=64)]
    nonce: Bytes16
    seq: Sequence64
    round: Count
    epoch: Count
    base: Bytes32
    steps: Count = 0
    rate_sum: float = 0.0
    samples: Count = 0
    loss: float = 0.0
    objective: float = 0.0
    drift: float = 0.0
    holdout_samples: Count = 0
    holdout_loss: float = 0.0
    holdout_accuracy: float | None = None
    delta_y: Codec = "f32"
    delta_c: DeltaC = "none"
    scheme: Scheme = FLOAT
    # A newcomer's steps were not corrected by c; absent where they were.
    spared: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    # Of the device's own model on the same hold-out; absent where it has none.
    personal_loss: float | msgspec.UnsetType = msgspec.UNSET
    personal_accuracy: Share | msgspec.UnsetType | None = msgspec.UNSET


class Body(msgspec.Struct, frozen=True):
    """An update's header and its decoded vectors, which are read-only."""

    header: UpdateHeader
    delta_y: F32 | None
    delta_c: F32 | None
    c_i: I64 | None


def encode_body(
    header: UpdateHeader,
    *,
    delta_y: Raw | None = None,
    delta_c: Raw | None = None,
    c_i: Raw | None = None,
) -> bytes:
    """The bytes of an update.

    ``delta_y`` and ``delta_c``: as ``encode_vector`` makes them, in the header's codecs,
    n_update and n_train elements; a leave carries ``c_i``, int64 [n_train], alone. A
    float32 or int64 array is its own encoding.
    """
    head = wire.pack(header, limit=HEADER_BYTES)
    pieces: list[bytes | memoryview] = [
        _PREFIX.pack(_MAGIC, len(head)),
        head,
        _zeros(_PREFIX.size + len(head), _ALIGNMENT),
    ]
    for vector in (delta_y, delta_c, c_i):
        if vector is not None:
            view = memoryview(vector).cast("B")  # type: ignore[arg-type]  # an array has a buffer
            pieces += [_zeros(sum(map(len, pieces)), 4), view]
    return b"".join(pieces)


def _zeros(length: int, alignment: int) -> bytes:
    """What brings ``length`` to the next multiple."""
    return bytes(-length % alignment)


def _vectors_at(header: int) -> int:
    """Where the vectors begin, on a boundary that every element type can be read from."""
    return -(-(_PREFIX.size + header) // _ALIGNMENT) * _ALIGNMENT


def body_limit(
    shapes: Shapes, delta_y: Iterable[Codec] = ("f32",), delta_c: DeltaC = "f32", share: float = 0.0
) -> int:
    """The most bytes an update of such a plan can have in any of the accepted codecs."""
    longest = max(vector_limit(c, shapes.n_update, shapes.update, share) for c in delta_y)
    if delta_c != "none" and delta_c != "derived":  # noqa: PLR1714 - so that types follow
        longest += vector_limit(delta_c, shapes.n_train, shapes.train, share) + 3
    return _vectors_at(HEADER_BYTES) + longest


def leave_limit(shapes: Shapes) -> int:
    """The most bytes a leave can have."""
    return _vectors_at(HEADER_BYTES) + 8 * shapes.n_train


def decode_body(raw: bytes | memoryview, shapes: Shapes, share: float = 0.0) -> Body:
    """The update in ``raw``; lengths come from the plan, and the ``share`` that was announced.

    Vectors that travel as float32 are views of ``raw``. Raises ``ProtocolError``
    where anything is missing, left over or out of its limits.
    """
    if len(raw) < _PREFIX.size:
        raise ProtocolError("an update without a header")
    magic, length = _PREFIX.unpack_from(raw)
    if magic != _MAGIC or length > HEADER_BYTES or len(raw) < _vectors_at(length):
        raise ProtocolError("bytes that are no update of version 1")
    end, start = _PREFIX.size + length, _vectors_at(length)
    header: UpdateHeader = wire.unpack(raw[_PREFIX.size : end], UpdateHeader, limit=HEADER_BYTES)
    _only_zeros(raw[end:start])
    view = memoryview(raw)[start:]
    if header.kind == "leave":
        if view:
            _expect(view, 8 * shapes.n_train)
        return Body(header, None, None, np.frombuffer(view, "<i8") if view else None)
    first = vector_limit(header.delta_y, shapes.n_update, shapes.update, share)
    if header.delta_c == "none" or header.delta_c == "derived":  # noqa: PLR1714
        _expect(view, first)
        return Body(
            header, decode_vector(header.delta_y, view, shapes.update, shapes.n_update), None, None
        )
    second = first + -first % 4
    _expect(view, second + vector_limit(header.delta_c, shapes.n_train, shapes.train, share))
    _only_zeros(view[first:second])
    return Body(
        header,
        decode_vector(header.delta_y, view[:first], shapes.update, shapes.n_update),
        decode_vector(header.delta_c, view[second:], shapes.train, shapes.n_train),
        None,
    )


def _only_zeros(gap: bytes | memoryview) -> None:
    if any(gap):
        raise ProtocolError("an update with bytes between header and vectors")


def _expect(view: memoryview, wanted: int) -> None:
    if len(view) != wanted:
        raise ProtocolError(
            f"an update with {len(view)} bytes of vectors",
            why=f"the plan and the codecs ask for {wanted}",
        )
