"""The body of an update: a header and raw vectors (docs/protocol.md)."""

from __future__ import annotations

import struct
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from kellet.sdk.errors import ProtocolError
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.limits import HEADER_BYTES, VERSION
from kellet.sdk.protocol.messages import Bytes16, Bytes32, Count, Sequence64

__all__ = ["Body", "UpdateHeader", "body_limit", "decode_body", "encode_body"]

_PREFIX = struct.Struct("<4sI")
_MAGIC = b"KLU1"
_ALIGNMENT = 16

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


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
    delta_y: Literal["f32"] = "f32"
    delta_c: Literal["none", "derived", "f32"] = "none"


class Body(msgspec.Struct, frozen=True):
    """A decoded update. The vectors are read-only views of the bytes."""

    header: UpdateHeader
    delta_y: F32 | None
    delta_c: F32 | None
    c_i: I64 | None


def encode_body(
    header: UpdateHeader,
    *,
    delta_y: F32 | None = None,
    delta_c: F32 | None = None,
    c_i: I64 | None = None,
) -> bytes:
    """The bytes of an update.

    ``delta_y``: float32 [n_update], ``delta_c``: float32 [n_train] where the header's
    codec is ``f32``; a leave carries ``c_i``: int64 [n_train] alone.
    """
    head = wire.pack(header, limit=HEADER_BYTES)
    vectors = [v.tobytes() for v in (delta_y, delta_c, c_i) if v is not None]
    gap = bytes(_vectors_at(len(head)) - _PREFIX.size - len(head))
    return b"".join([_PREFIX.pack(_MAGIC, len(head)), head, gap, *vectors])


def _vectors_at(header: int) -> int:
    """Where the vectors begin, on a boundary that every element type can be read from."""
    return -(-(_PREFIX.size + header) // _ALIGNMENT) * _ALIGNMENT


def body_limit(n_update: int, n_train: int) -> int:
    """The most bytes a body for such a plan can have."""
    return _vectors_at(HEADER_BYTES) + max(4 * (n_update + n_train), 8 * n_train)


def decode_body(raw: bytes | memoryview, n_update: int, n_train: int) -> Body:
    """The update in ``raw``; the lengths come from the plan.

    Raises ``ProtocolError`` where anything is missing, left over or out of its limits.
    """
    if len(raw) < _PREFIX.size:
        raise ProtocolError("an update without a header")
    magic, length = _PREFIX.unpack_from(raw)
    if magic != _MAGIC or length > HEADER_BYTES or len(raw) < _vectors_at(length):
        raise ProtocolError("bytes that are no update of version 1")
    end, start = _PREFIX.size + length, _vectors_at(length)
    header: UpdateHeader = wire.unpack(raw[_PREFIX.size : end], UpdateHeader, limit=HEADER_BYTES)
    if any(raw[end:start]):
        raise ProtocolError("an update with bytes between header and vectors")
    explicit = header.kind == "update" and header.delta_c == "f32"
    expected = 4 * (n_update + (n_train if explicit else 0))
    if header.kind == "leave":
        expected = 8 * n_train
        if len(raw) == start:
            return Body(header, None, None, None)
    if len(raw) - start != expected:
        raise ProtocolError(
            f"an update with {len(raw) - start} bytes of vectors",
            why=f"the plan and the codecs ask for {expected}",
        )
    if header.kind == "leave":
        return Body(header, None, None, np.frombuffer(raw, "<i8", n_train, start))
    delta_y = np.frombuffer(raw, "<f4", n_update, start)
    delta_c = np.frombuffer(raw, "<f4", n_train, start + 4 * n_update) if explicit else None
    return Body(header, delta_y, delta_c, None)
