"""Where power cuts are tried."""

from __future__ import annotations

import _sqlite3
import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.power.files import in_memory


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a test may write, and a SQLite below which it can get."""
    file = getattr(_sqlite3, "__file__", None)
    if file is None or not hasattr(ctypes.CDLL(file), "sqlite3_vfs_register"):
        pytest.skip("this Python hides the functions of its SQLite")
    with in_memory() as made:
        yield made
