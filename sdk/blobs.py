"""Blobs a device holds: plans on its disk for good, model and control for the round."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kellet.sdk.durable import write_file

__all__ = ["BlobCache"]

Blob = bytes | memoryview


class BlobCache:
    """Content-addressed bytes: in memory, or, where they are kept, in ``directory`` alone."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._held: dict[bytes, Blob] = {}
        self._sound: set[bytes] = set()  # files whose digest has been checked

    def __contains__(self, sha256: bytes) -> bool:
        return sha256 in self._held or self.file(sha256) is not None

    def __getitem__(self, sha256: bytes) -> Blob:
        if sha256 in self._held:
            return self._held[sha256]
        path = self.file(sha256)
        if path is None:
            raise KeyError(sha256.hex())
        return path.read_bytes()

    def file(self, sha256: bytes) -> Path | None:
        """Where a kept blob lies; None where it is not on the disk, or damaged there."""
        if self._directory is None:
            return None
        path = self._directory / sha256.hex()
        if not path.is_file():
            return None
        if sha256 not in self._sound:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").digest() != sha256:
                    return None  # torn by a power cut: it is fetched again
            self._sound.add(sha256)
        return path

    def take(self, *wanted: bytes) -> list[Blob]:
        """What ``[]`` gives for each, to be held by the caller alone from now on."""
        data = [self[sha256] for sha256 in wanted]
        for sha256 in wanted:
            self._held.pop(sha256, None)
        return data

    def put(self, data: Blob, *, keep: bool = False) -> bytes:
        """Hold ``data``; ``keep`` writes it to the directory instead. Its SHA-256."""
        sha256 = hashlib.sha256(data).digest()
        if keep and self._directory is not None:
            write_file(self._directory / sha256.hex(), data)
            self._sound.add(sha256)
        else:
            self._held[sha256] = data
        return sha256

    def retain(self, wanted: set[bytes]) -> None:
        """Let go of what is held in memory and not wanted any more."""
        for sha256 in self._held.keys() - wanted:
            del self._held[sha256]
