"""Rounds that go on without the slowest device, whose updates are counted all the same."""

from __future__ import annotations

import json
import sqlite3

from support.fleet import Fleet, MakeFleet


def test_a_slow_device_is_counted_late_and_the_aggregator_killed(make_fleet: MakeFleet) -> None:
    """Two rounds a training of c, or more: it sends the steps that it has. The gap is 0."""
    fleet = make_fleet(
        "a b c", rounds=30, late="buffer", buffer=2, quorum=1, max_stale=4, over_select=2.0
    )
    # A round lasts a quarter of a second, or c, once told to hurry, would still be too late.
    quick = [fleet.device(name, pause=0.25) for name in ("a", "b")]
    devices = [*quick, fleet.device("c", step_seconds=0.3)]
    first = fleet.aggregator()
    first.wait_for("round", count=8)
    first.kill()
    last = fleet.aggregator()
    assert last.end() == 0
    assert [device.end() for device in devices] == [0, 0, 0]
    late = [header["stale"] for name, header in _counted(fleet) if name == "c"]
    assert max(late) >= 2
    assert sum(round_["late"] for round_ in last.reports("round")) >= 1
    stopped = [report.get("stopped") for report in devices[2].reports("trained")]
    assert "the rounds have gone on" in stopped
    for name in fleet.clients:
        fleet.check_control(name)
        receipts = fleet.disk(name).receipts()
        counted = [header["seq"] for device, header in _counted(fleet) if device == name]
        assert [r.seq for r in receipts if r.counted] == sorted(counted)
    assert fleet.gap() == 0


def _counted(fleet: Fleet) -> list[tuple[str, dict[str, int]]]:
    ledger = sqlite3.connect(fleet.folder / "server" / "ledger.db")
    rows = ledger.execute("select device, header from updates where counted = 1").fetchall()
    ledger.close()
    return [(device, json.loads(header)) for device, header in rows]
