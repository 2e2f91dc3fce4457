"""The container of a plan: a ZIP file that can be written in one way only.

Entries are stored, not compressed; there are no timestamps, comments, extra
fields, flags, gaps or trailing bytes, and the order of entries is the order in
which they were given. So the same content gives the same file, ordinary ZIP
tools open it, and reading can demand every byte: a file that this module did
not write is refused, whatever trick it holds.

The layout is that of PKWARE's APPNOTE 6.3, sections 4.3.7, 4.3.12 and 4.3.16.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from mmap import mmap

from kellet.sdk.errors import PlanError

Limits = Mapping[str, int]
Entries = dict[str, memoryview]

__all__ = ["MAX_BUNDLE_BYTES", "pack", "unpack"]

MAX_BUNDLE_BYTES = 1 << 30

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_VERSION = 20
_MADE_ON_UNIX = 3 << 8
_NEW_YEAR_1980 = 0x21
_REGULAR_FILE_0644 = 0o100644 << 16


def pack(entries: Mapping[str, bytes]) -> bytes:
    """Return the container of ``entries``, in their order."""
    body: list[bytes] = []
    central: list[bytes] = []
    offset = 0
    for name, content in entries.items():
        encoded, crc = name.encode("ascii"), zlib.crc32(content)
        body += [_local(encoded, crc, len(content)), encoded, content]
        central.append(_central(encoded, crc, len(content), offset))
        offset += _LOCAL.size + len(encoded) + len(content)
    if offset > MAX_BUNDLE_BYTES:
        raise PlanError(
            f"the bundle would be {offset} bytes",
            why=f"a bundle holds at most {MAX_BUNDLE_BYTES}",
            repair="make the model smaller",
        )
    return b"".join([*body, *central, _end(len(entries), sum(map(len, central)), offset)])


def unpack(
    data: bytes | mmap, limits: Limits, then: Callable[[Entries], Limits] = lambda _: {}
) -> Entries:
    """Return the content of each entry, as views of ``data``.

    ``limits`` names the entries that must be there, in order, with the largest
    size in bytes of each; ``then`` gets these and names those that follow.
    Raises ``PlanError`` for anything that `pack` would not have written.
    """
    if len(data) > MAX_BUNDLE_BYTES:
        raise _refused(f"it has {len(data)} bytes, and at most {MAX_BUNDLE_BYTES} are read")
    if data[:4] != b"PK\x03\x04":
        raise _refused("it does not begin as a ZIP file does")
    view = memoryview(data)
    entries: Entries = {}
    central: list[bytes] = []
    offset = _take(data, 0, limits, entries, central)
    offset = _take(data, offset, then(entries), entries, central)
    _check_tail(view[offset:], central, offset)
    return entries


def _take(
    data: bytes | mmap, offset: int, limits: Limits, entries: Entries, central: list[bytes]
) -> int:
    """Read the entries that ``limits`` names, from ``offset`` on; return where they end."""
    view = memoryview(data)
    for name, limit in limits.items():
        encoded = name.encode("ascii")
        start = offset + _LOCAL.size + len(encoded)
        if start > len(data):
            raise _truncated(f"it ends before the entry {name!r}")
        crc, size = _LOCAL.unpack_from(data, offset)[6:8]
        if view[offset:start] != _local(encoded, crc, size) + encoded:
            raise _refused(f"the entry {name!r} is not where it must be, or not plainly stored")
        if size > limit:
            raise _refused(f"the entry {name!r} has {size} bytes, and at most {limit} are read")
        content = view[start : start + size]
        if len(content) < size:
            raise _truncated(
                f"{name!r} has {size} bytes, and the file holds {len(content)} of them"
            )
        if zlib.crc32(content) != crc:
            raise _refused(f"the checksum of {name!r} is wrong")
        entries[name] = content
        central.append(_central(encoded, crc, size, offset))
        offset = start + size
    return offset


def _check_tail(tail: memoryview, central: Sequence[bytes], offset: int) -> None:
    directory = b"".join(central)
    expected = directory + _end(len(central), len(directory), offset)
    if len(tail) < len(expected) and tail == expected[: len(tail)]:
        raise _truncated("its table of contents is not complete")
    if tail != expected:
        raise _refused("it holds more than a plan, or its table of contents does not match")


def _local(name: bytes, crc: int, size: int) -> bytes:
    return _LOCAL.pack(
        b"PK\x03\x04", _VERSION, 0, 0, 0, _NEW_YEAR_1980, crc, size, size, len(name), 0
    )


def _central(name: bytes, crc: int, size: int, offset: int) -> bytes:
    made_by = _MADE_ON_UNIX | _VERSION
    head = (b"PK\x01\x02", made_by, _VERSION, 0, 0, 0, _NEW_YEAR_1980, crc, size, size)
    return _CENTRAL.pack(*head, len(name), 0, 0, 0, 0, _REGULAR_FILE_0644, offset) + name


def _end(count: int, size: int, offset: int) -> bytes:
    return _END.pack(b"PK\x05\x06", 0, 0, count, count, size, offset, 0)


def _refused(why: str) -> PlanError:
    return PlanError(
        "this is not a plan that Kellet wrote",
        why=why,
        repair="export the plan again, or copy it again from where it was made",
    )


def _truncated(why: str) -> PlanError:
    return PlanError("the plan is truncated", why=why, repair="copy or download it again")
