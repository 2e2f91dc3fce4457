"""What the aggregator serves lies on its disk, and not in its memory, too."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import pytest

from kellet.sdk.errors import StorageError
from kellet.sdk.protocol.effects import Publish
from kellet.sdk.protocol.topics import Topics
from kellet.server.blobs import Blobs
from kellet.server.downloads import Downloads

DATA = bytes(range(256)) * 3000


def test_what_is_on_the_disk_takes_no_memory(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    tracemalloc.start()
    try:
        sha256 = blobs.put(memoryview(DATA))
        stored = blobs.open(sha256)
        assert stored is not None
        assert stored[1000:1300] == DATA[1000:1300]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < len(DATA)
    assert sha256 == hashlib.sha256(DATA).digest()
    assert len(stored) == len(DATA)
    assert blobs.get(sha256) == DATA


@pytest.mark.parametrize("disk", [True, False])
def test_a_blob_that_is_being_sent_outlives_its_name(disk: bool, tmp_path: Path) -> None:
    blobs = Blobs(tmp_path if disk else None)
    sha256 = blobs.put(DATA)
    stored = blobs.open(sha256)
    assert stored is not None
    blobs.retain(set())
    assert blobs.open(sha256) is None
    assert stored[-10:] == DATA[-10:]


def test_a_damaged_blob_is_not_served(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    sha256 = blobs.put(DATA)
    (tmp_path / sha256.hex()).write_bytes(DATA[:-1] + b"\0")
    with pytest.raises(StorageError, match="is damaged"):
        blobs.open(sha256)


def test_a_blob_that_becomes_shorter_is_said_to(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    sha256 = blobs.put(DATA)
    stored = blobs.open(sha256)
    assert stored is not None
    (tmp_path / sha256.hex()).write_bytes(DATA[:10])
    with pytest.raises(StorageError, match="it has become shorter"):
        stored[5:20]


def test_a_blocked_link_holds_no_blobs_of_rounds_that_are_over() -> None:
    served = {bytes([i]) * 32: bytes(100) for i in range(4)}
    downloads = Downloads(Topics("f"), served.get)
    for sha256 in list(served):
        downloads.get("a", sha256, b"\x01", 1024, now=0.0)
    assert downloads.tick(room=0, now=1.0) == []
    assert downloads.wake is not None  # all four wait for room
    kept = bytes([3]) * 32
    for sha256 in served.keys() - {kept}:
        del served[sha256]
    (effect,) = downloads.tick(room=1 << 20, now=2.0)
    assert isinstance(effect, Publish)
    assert kept.hex() in effect.topic
    assert downloads.wake is None
