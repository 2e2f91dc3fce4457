"""What the aggregator serves lies on its disk, and not in its memory, too."""

from __future__ import annotations

import hashlib
import tracemalloc
from pathlib import Path

import pytest

from kellet.sdk.errors import StorageError
from kellet.server.blobs import Blobs

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
