"""Power cuts: of thousands none loses a receipted update, and laxer settings are found out."""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.power.cuts import cut
from faults.power.history import History
from faults.power.work import work

from kellet.sdk.durable import Database


def _sqlite_can_be_disks() -> bool:
    file = getattr(_sqlite3, "__file__", None)
    return file is not None and hasattr(ctypes.CDLL(file), "sqlite3_vfs_register")


pytestmark = pytest.mark.skipif(
    not _sqlite_can_be_disks(), reason="this Python hides its SQLite's functions"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, where there is one: the syncs are counted and not waited for."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as made:
        yield Path(made)


def disks(folder: Path, rounds: int) -> History:
    return work(folder / "disks", seed=1, rounds=rounds)


@pytest.mark.parametrize(
    "count", [300, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_no_cut_loses_a_receipted_update(count: int, folder: Path) -> None:
    history = disks(folder, rounds=60)
    assert len(history.receipts) == 120
    outcome = cut(history, folder / "after", count=count, seed=2)
    assert outcome.wrong == []
    assert outcome.cuts.total() == count
    assert len(outcome.cuts) == 20  # a, b, the server, or all of them, in each of five ways


@pytest.mark.parametrize(
    ("journal", "synchronous"), [("wal", "normal"), ("wal", "off"), ("delete", "off")]
)
def test_a_laxer_setting_is_found_out(
    journal: str, synchronous: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lax(self: Database) -> None:
        self._db.execute(f"pragma journal_mode = {journal}")
        self._db.execute(f"pragma synchronous = {synchronous}")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_make_durable", lax)
        history = disks(folder, rounds=10)
    outcome = cut(history, folder / "after", count=60, seed=3)
    found = " ".join(outcome.wrong)
    assert "neither as before nor as after" in found
    assert "the receipted update" in found
    assert ("damaged" in found or "cannot be read" in found) == (synchronous == "off")


def test_a_killed_process_loses_nothing_that_was_written(folder: Path) -> None:
    history = disks(folder, rounds=5)
    for path, commits in history.commits.items():
        assert len(commits) > 10
        assert commits[-1].state in history.allowed(path, len(history.events))
        assert len(history.allowed(path, commits[5].end)) == 1
        assert len(history.allowed(path, commits[5].end - 1)) == 2
