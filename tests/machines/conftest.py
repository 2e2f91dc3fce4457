"""A folder in memory where there is one: syncing it costs nothing, and thousands are made."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="kellet-test-", dir=memory if memory.is_dir() else None
    ) as name:
        yield Path(name)
