"""What the aggregator serves: plan, models, controls, by their SHA-256."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kellet.sdk.durable import write_file
from kellet.sdk.errors import StorageError

__all__ = ["Blobs"]


class Blobs:
    """Content-addressed bytes in ``directory``, or (None) in memory."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._held: dict[bytes, bytes] = {}

    def put(self, data: bytes) -> bytes:
        """Keep ``data`` durably; its SHA-256."""
        sha256 = hashlib.sha256(data).digest()
        if self._directory is not None:
            path = self._directory / sha256.hex()
            if not path.exists():
                write_file(path, data)
        self._held[sha256] = data
        return sha256

    def get(self, sha256: bytes) -> bytes | None:
        """The bytes, or None where they are not (or no longer) served."""
        if sha256 not in self._held and self._directory is not None:
            try:
                data = (self._directory / sha256.hex()).read_bytes()
            except OSError:
                return None
            if hashlib.sha256(data).digest() != sha256:
                raise StorageError(
                    f"{sha256.hex()} in {self._directory} is damaged",
                    why="its digest is not its name",
                    repair="restore the state directory from a backup",
                )
            self._held[sha256] = data
        return self._held.get(sha256)

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
