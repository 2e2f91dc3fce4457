"""Parts of large transfers: the binary header, and bitmaps of what is missing."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kellet.sdk.errors import ProtocolError
from kellet.sdk.protocol.limits import PART_HEADER, VERSION

__all__ = ["Part", "bitmap", "decode_part", "encode_part", "missing_in", "part_count"]

_HEADER = struct.Struct("<4sB3x16sII")
_MAGIC = b"KLTP"
assert _HEADER.size == PART_HEADER


@dataclass(frozen=True, slots=True)
class Part:
    """``payload`` is part ``index`` of the transfer named ``uid`` (16 bytes)."""

    uid: bytes
    index: int
    payload: memoryview


def encode_part(uid: bytes, index: int, payload: bytes | memoryview) -> bytes:
    """One part as it travels: 32 bytes of header, then the payload."""
    return _HEADER.pack(_MAGIC, VERSION, uid, index, zlib.crc32(payload)) + payload


def decode_part(raw: bytes) -> Part:
    """The part in ``raw``; ``ProtocolError`` where header or checksum are wrong."""
    if len(raw) <= PART_HEADER:
        raise ProtocolError(f"a part of {len(raw)} bytes", why="its header alone has 32")
    magic, version, uid, index, crc = _HEADER.unpack_from(raw)
    payload = memoryview(raw)[PART_HEADER:]
    if magic != _MAGIC or version != VERSION:
        raise ProtocolError("bytes that are no part of version 1")
    if zlib.crc32(payload) != crc:
        raise ProtocolError("a part whose checksum is wrong", why="it was damaged on the way")
    return Part(uid, index, payload)


def part_count(size: int, part_size: int) -> int:
    """How many parts ``size`` bytes travel in."""
    return -(-size // part_size)


def bitmap(missing: Iterable[int], count: int) -> bytes:
    """The set of indices as a bitmap; empty where nothing is missing."""
    bits = bytearray((count + 7) // 8)
    for index in missing:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits).rstrip(b"\0")


def missing_in(bits: bytes, count: int) -> Iterator[int]:
    """The indices below ``count`` that ``bits`` names, in order."""
    for byte_index, byte in enumerate(bits):
        for bit in range(8):
            index = byte_index * 8 + bit
            if byte >> bit & 1 and index < count:
                yield index
