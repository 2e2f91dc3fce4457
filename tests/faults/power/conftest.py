"""Where power cuts are tried."""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, where there is one: syncs are noted, and need not be waited for."""
    file = getattr(_sqlite3, "__file__", None)
    if file is None or not hasattr(ctypes.CDLL(file), "sqlite3_vfs_register"):
        pytest.skip("this Python hides the functions of its SQLite")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kellet-power-", dir=memory) as made:
        yield Path(made)
