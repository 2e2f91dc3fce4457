"""What the aggregator serves: plan, models, controls, by their SHA-256."""

from __future__ import annotations

import hashlib
import os
import weakref
from pathlib import Path

from kellet.sdk.durable import ReadInParts, write_file
from kellet.sdk.errors import StorageError

__all__ = ["Blobs"]

_PART = 1 << 18  # bytes


class Blobs:
    """Content-addressed bytes in ``directory``, or (None) in memory.

    What is in the directory takes no memory: it is read where it is wanted.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._held: dict[bytes, ReadInParts] = {}  # in memory, or open

    def put(self, data: bytes | memoryview) -> bytes:
        """Keep ``data`` durably; its SHA-256."""
        sha256 = hashlib.sha256(data).digest()
        if self._directory is None:
            self._held[sha256] = bytes(data)
        else:
            path = self._directory / sha256.hex()
            if not path.exists():
                write_file(path, data)
        return sha256

    def open(self, sha256: bytes) -> ReadInParts | None:
        """The bytes, to be read in parts, or None where they are not (or no longer) served.

        What was opened can be read even when it is served no longer.
        """
        if sha256 not in self._held and self._directory is not None:
            try:
                stored = _Stored(self._directory / sha256.hex())
            except OSError:
                return None
            digest = hashlib.sha256()
            for start in range(0, len(stored), _PART):
                digest.update(stored[start : start + _PART])
            self._check(sha256, digest.digest())
            self._held[sha256] = stored
        return self._held.get(sha256)

    def get(self, sha256: bytes) -> bytes | None:
        """The bytes, or None where they are not (or no longer) served."""
        stored = self.open(sha256)
        return None if stored is None else stored[:]

    def has(self, sha256: bytes) -> bool:
        """Whether something lies under this digest; it is not read."""
        on_disk = self._directory is not None and (self._directory / sha256.hex()).is_file()
        return on_disk or sha256 in self._held

    def retain(self, wanted: set[bytes], seldom: frozenset[bytes] = frozenset()) -> None:
        """Serve only these from now on, those that are ``seldom`` wanted out of the directory."""
        in_memory = wanted if self._directory is not None else wanted | seldom
        for sha256 in self._held.keys() - in_memory:
            del self._held[sha256]
        if self._directory is None or not self._directory.exists():
            return
        names = {sha256.hex() for sha256 in wanted | seldom}
        for path in self._directory.iterdir():
            if path.name not in names:
                path.unlink(missing_ok=True)

    def _check(self, sha256: bytes, found: bytes) -> None:
        if found != sha256:
            raise StorageError(
                f"{sha256.hex()} in {self._directory} is damaged",
                why="its digest is not its name",
                repair="restore the state directory from a backup",
            )


class _Stored:
    """A file of the directory, open as long as this is held. ``OSError`` where there is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._fd)
        self._size = os.fstat(self._fd).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        try:
            data = os.pread(self._fd, stop - start, start)
        except OSError as error:
            data, why = b"", error.strerror or str(error)
        else:
            why = "it has become shorter"
        if len(data) < stop - start:
            raise StorageError(
                f"{self._path} cannot be read",
                why=why,
                repair="restore the state directory from a backup",
            )
        return data
