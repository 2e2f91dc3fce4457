"""Power cuts in a fleet of the product's machines: it goes on, and comes to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faults.power.fleets import FLEETS, cut_fleet, record

from kellet.sdk.durable import Database
from kellet.sdk.protocol.assembly import Assembly
from kellet.server import blobs


@pytest.mark.parametrize(
    "count", [40, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_goes_on_as_if_nothing_had_been(name: str, count: int, folder: Path) -> None:
    recorded = record(folder / "disks", **FLEETS[name])
    assert recorded.ended["rounds"] == [("closed", 2)] * 3
    outcome = cut_fleet(recorded, folder / "after", count=count, seed=4)
    assert outcome.wrong == []
    assert outcome.cuts.total() == count


def lax(self: Database) -> None:
    self._db.execute("pragma journal_mode = wal")
    self._db.execute("pragma synchronous = normal")


@pytest.mark.parametrize(
    ("owner", "name", "replacement"),
    [
        (Database, "_make_durable", lax),
        (Assembly, "sync", lambda _self: None),
        (blobs, "write_file", lambda path, data: path.write_bytes(data)),
    ],
    ids=["database", "spool", "blobs"],
)
def test_a_missing_sync_is_found_out(
    owner: Any, name: str, replacement: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, replacement)
        (folder / "disks" / "server-0" / "blobs").mkdir(parents=True)
        recorded = record(folder / "disks", **FLEETS["derived"])
    assert cut_fleet(recorded, folder / "after", count=40, seed=4).wrong
