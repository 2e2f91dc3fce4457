"""A transfer on its way in: parts land where they belong, in any order, once."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import struct
from pathlib import Path

from kellet.sdk.errors import ProtocolError, StorageError
from kellet.sdk.protocol.limits import MAX_PARTS
from kellet.sdk.protocol.parts import bitmap, part_count

__all__ = ["Assembly"]

_SIZE = struct.Struct("<I")  # of a part, between a file's data and its flags
_READ = 1 << 20  # bytes of a mapped file that are in memory at once


class Assembly:
    """``size`` bytes that arrive in parts, in memory or in a file that outlives us.

    A file holds the data and, behind it, the size of a part and a byte a part that says
    "here". Opened for parts of another size it keeps those that have come whole. It may be
    torn by a power cut: only ``verified`` (the SHA-256 of the whole) makes it true,
    and a wrong digest empties it.
    """

    def __init__(self, size: int, part_size: int, sha256: bytes, path: Path | None = None) -> None:
        if size <= 0:
            raise ProtocolError("a transfer of no bytes")
        self.size = size
        self.part_size = part_size
        self.sha256 = sha256
        self.count = part_count(size, part_size)
        if self.count > MAX_PARTS:
            raise ProtocolError(
                f"a transfer of {self.count} parts",
                why=f"at most {MAX_PARTS} can be told apart in a message",
            )
        self.path = path
        self._flags = size + _SIZE.size  # where they begin
        self._store: bytearray | mmap.mmap
        self._store = (
            bytearray(self._flags + self.count)
            if path is None
            else _mapped(path, size, part_size, self.count)
        )
        flags = self._store[self._flags :]
        self._missing = {i for i in range(self.count) if not flags[i]}

    @property
    def complete(self) -> bool:
        return not self._missing

    @property
    def missing(self) -> bytes:
        """Bitmap of the parts that have not come."""
        return bitmap(self._missing, self.count)

    @property
    def missing_count(self) -> int:
        return len(self._missing)

    def add(self, index: int, payload: bytes | memoryview) -> bool:
        """Place a part; True if it is new. ``ProtocolError`` where it cannot belong here."""
        if not 0 <= index < self.count:
            raise ProtocolError(f"part {index} of a transfer that has {self.count}")
        start = index * self.part_size
        if len(payload) != min(self.part_size, self.size - start):
            raise ProtocolError(f"part {index} of {len(payload)} bytes", why="its size is fixed")
        if index not in self._missing:
            return False
        self._store[start : start + len(payload)] = payload
        self._store[self._flags + index : self._flags + index + 1] = b"\1"
        self._missing.discard(index)
        self._release()
        return True

    def verified(self) -> bool:
        """True where all is here and the digest is right; else what is wrong is forgotten."""
        if self._missing:
            return False
        digest = hashlib.sha256()
        with memoryview(self._store) as view:
            for start in range(0, self.size, _READ):
                with view[start : min(start + _READ, self.size)] as data:
                    digest.update(data)
                self._release()
        right = digest.digest() == self.sha256
        if not right:
            self._store[self._flags :] = bytes(self.count)
            self._missing = set(range(self.count))
        return right

    def data(self) -> bytes:
        """The bytes (a copy)."""
        with memoryview(self._store) as view, view[: self.size] as data:
            copy = bytes(data)
        self._release()
        return copy

    def take(self) -> memoryview:
        """The bytes of a transfer in memory, not copied: nothing may be added afterwards."""
        assert isinstance(self._store, bytearray)
        return memoryview(self._store)[: self.size].toreadonly()

    def _release(self) -> None:
        """Let go of the memory that a mapped file takes.

        The map is shared: what was written is in the system's cache, and ``sync`` finds it there.
        """
        if isinstance(self._store, mmap.mmap):
            self._store.madvise(mmap.MADV_DONTNEED)

    def sync(self) -> None:
        """Put the file on the disk: its data, and its name in the directory."""
        if isinstance(self._store, mmap.mmap):
            self._store.flush()
            assert self.path is not None
            for path in (self.path, self.path.parent):
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    def close(self) -> None:
        if isinstance(self._store, mmap.mmap):
            self._store.close()

    def discard(self) -> None:
        """Close, and remove the file."""
        self.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _mapped(path: Path, size: int, part_size: int, count: int) -> mmap.mmap:
    total = size + _SIZE.size + count
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            earlier = os.pread(fd, _SIZE.size + MAX_PARTS, size)
            flags = _flags_of(earlier, size, part_size)
            if earlier != _SIZE.pack(part_size) + flags:
                os.ftruncate(fd, size if any(flags) else 0)
                # A map over a hole dies with SIGBUS on a full disk; reserved blocks cannot.
                os.posix_fallocate(fd, 0, total)
                os.pwrite(fd, _SIZE.pack(part_size) + flags, size)
            return mmap.mmap(fd, total)
        finally:
            os.close(fd)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full:
            path.unlink(missing_ok=True)
        raise StorageError(
            f"{total} bytes cannot be reserved in {path.parent}",
            why="the disk is full" if full else str(error),
            repair="free some space or choose another --state directory",
        ) from None


def _flags_of(earlier: bytes, size: int, part_size: int) -> bytes:
    """Which parts are here, by what stands behind a file's data: whole parts of any size."""
    count = part_count(size, part_size)
    flags = earlier[_SIZE.size :]
    of = _SIZE.unpack_from(earlier)[0] if flags else 0
    if not of or part_count(size, of) != len(flags):
        return bytes(count)  # another file's, or a torn one
    ends = (min(start + part_size, size) for start in range(0, size, part_size))
    return bytes(
        all(flags[index * part_size // of : -(-end // of)]) for index, end in enumerate(ends)
    )
