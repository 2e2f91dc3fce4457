"""Power cuts: of thousands none loses a receipted update, and laxer settings are found out."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.power.promises import cut_work
from faults.power.work import work

from kellet.sdk.durable import Database


@pytest.mark.parametrize(
    "count", [300, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_no_cut_loses_a_receipted_update(count: int, folder: Path) -> None:
    history = work(folder / "disks", seed=1, rounds=60)
    assert len(history.receipts) == 120
    outcome = cut_work(history, folder / "after", count=count, seed=2)
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
        history = work(folder / "disks", seed=1, rounds=10)
    outcome = cut_work(history, folder / "after", count=60, seed=3)
    found = " ".join(outcome.wrong)
    assert "neither as before nor as after" in found
    assert "the receipted update" in found
    assert ("damaged" in found or "cannot be read" in found) == (synchronous == "off")


def test_what_a_database_may_hold(folder: Path) -> None:
    history = work(folder / "disks", seed=1, rounds=5)
    for path, commits in history.commits.items():
        assert len(commits) > 10
        assert history.allowed(path, len(history.events)) == {commits[-1].state}
        before, commit = commits[4:6]
        assert history.allowed(path, commit.start) == {before.state}
        assert history.allowed(path, commit.end - 1) == {before.state, commit.state}
        assert history.allowed(path, commit.end) == {commit.state}
