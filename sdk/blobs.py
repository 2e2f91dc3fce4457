"""Blobs a device holds: plans for good, model and control for the round."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kellet.sdk.durable import write_file

__all__ = ["BlobCache"]


class BlobCache:
    """Content-addressed bytes, in memory; what is kept also lies in ``directory``."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._held: dict[bytes, bytes] = {}

    def __contains__(self, sha256: bytes) -> bool:
        return sha256 in self._held or self._load(sha256)

    def __getitem__(self, sha256: bytes) -> bytes:
        if sha256 not in self:
            raise KeyError(sha256.hex())
        return self._held[sha256]

    def take(self, *wanted: bytes) -> list[bytes]:
        """What ``[]`` gives for each, to be held by the caller alone from now on."""
        data = [self[sha256] for sha256 in wanted]
        for sha256 in {*wanted}:
            del self._held[sha256]
        return data

    def put(self, data: bytes, *, keep: bool = False) -> bytes:
        """Hold ``data``; ``keep`` also writes it to the directory. Its SHA-256."""
        sha256 = hashlib.sha256(data).digest()
        self._held[sha256] = data
        if keep and self._directory is not None:
            write_file(self._directory / sha256.hex(), data)
        return sha256

    def retain(self, wanted: set[bytes]) -> None:
        """Let go of what is held in memory and not wanted any more."""
        for sha256 in self._held.keys() - wanted:
            del self._held[sha256]

    def _load(self, sha256: bytes) -> bool:
        if self._directory is None:
            return False
        try:
            data = (self._directory / sha256.hex()).read_bytes()
        except OSError:
            return False
        if hashlib.sha256(data).digest() != sha256:
            return False  # torn by a power cut: it is fetched again
        self._held[sha256] = data
        return True
