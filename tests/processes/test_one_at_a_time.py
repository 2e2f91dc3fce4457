"""One process a state directory, one process a device's id, one aggregator a fleet."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fleet import Child, MakeFleet, needs_mosquitto
from support.toy_plans import linear_loss

from kellet.sdk import Device, Plan
from kellet.sdk.errors import FleetError, StorageError
from kellet.server import Aggregator, FleetConfig


def test_two_devices_with_one_state_directory(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a b", rounds=1)
    aggregator = fleet.aggregator()
    first = fleet.device("a")
    first.wait_for("welcome")
    _ends_with(fleet.device("a"), StorageError, "is in use: another process has it open")
    assert fleet.device("b").end() == 0
    assert [first.end(), aggregator.end()] == [0, 0]
    fleet.check_undisturbed()


def test_two_aggregators_with_one_state_directory(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a", rounds=1)
    first = fleet.aggregator()
    first.wait_for("waiting")
    _ends_with(fleet.aggregator(), StorageError, "is in use: another process has it open")
    assert fleet.device("a").end() == 0
    assert first.end() == 0
    fleet.check_undisturbed()


@pytest.mark.parametrize(
    "broker", ["embedded", pytest.param("mosquitto", marks=needs_mosquitto)], indirect=True
)
def test_of_two_devices_with_one_id_the_older_is_fenced_off(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a b", rounds=200)
    aggregator = fleet.aggregator()
    older, other = fleet.device("a"), fleet.device("b")
    aggregator.wait_for("round", round=2)
    newer = fleet.device("a", state="a-copy")
    _ends_with(older, FleetError, "another process uses the device id 'a' - stop one of them")
    newer.wait_for("settled", count=2)
    for child in (newer, other, aggregator):
        assert child.stop() == 0
    # Its first membership stays in C as a ghost, with the control in its own directory.
    assert fleet.gap("a", "a-copy", "b") == 0


def test_what_cannot_be_opened_is_not_kept_locked(tmp_path: Path, plan: Plan) -> None:
    """Two who may not use a state directory, and one who may."""
    options = {"broker": "mqtt://127.0.0.1:1", "state": tmp_path}
    Device("a", data=([], []), **options).close()
    for _ in range(2):
        with pytest.raises(StorageError, match="belongs to device 'a', not 'b'"):
            Device("b", data=([], []), **options)
    Device("a", data=([], []), **options).close()
    other = linear_loss(2)
    Aggregator(plan, config=FleetConfig(), **options).close()
    for _ in range(2):
        with pytest.raises(FleetError, match="this state belongs to plan"):
            Aggregator(other, config=FleetConfig(), **options)
    Aggregator(plan, config=FleetConfig(), **options).close()


def _ends_with(child: Child, error: type[FleetError | StorageError], text: str) -> None:
    assert child.end() == error.exit_code
    (told,) = child.reports("error")
    assert told["type"] == error.__name__
    assert text in told["text"]
