"""SIGTERM at a bad moment: an orderly end, and everything whole."""

from __future__ import annotations

import time

import pytest
from support.fault_proxy import FaultProxy
from support.fleet import KILLED, Child, MakeFleet
from support.processes import wait_until

from kellet.sdk import Plan
from kellet.sdk.errors import LinkError
from kellet.sdk.transport.url import parse_url

PART = 1024
LONG = {"name": "scaffold", "local_lr": 0.01, "local_steps": 3_000, "batch_size": 8}
DEAD = "mqtt://127.0.0.1:9"


def test_a_device_in_training(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a b", algorithm=LONG, rounds=2)
    aggregator = fleet.aggregator()
    devices = fleet.devices()
    devices["a"].wait_for("fetched")
    time.sleep(0.05)
    _stops(devices["a"])
    assert devices["a"].reports("trained") == []
    assert fleet.disk("a").pending() is None
    assert fleet.disk("a").receipts() == []
    devices["a"] = fleet.device("a")
    assert aggregator.end() == 0
    assert [device.end() for device in devices.values()] == [0, 0]
    fleet.check_undisturbed()


def test_a_device_in_upload(make_fleet: MakeFleet, wide_plan: Plan) -> None:
    fleet = make_fleet("a", plan=wide_plan, rounds=2, part_size=PART)
    aggregator = fleet.aggregator()
    with FaultProxy(parse_url(fleet.broker.url).port) as proxy:
        device = fleet.device("a", broker=proxy.url)
        device.wait_for("fetched")
        proxy.rate_up = 6_000.0
        device.wait_for("trained")
        uid = fleet.disk("a").pending()
        assert uid is not None
        wait_until(lambda: fleet.ledger.arrived(uid, PART)[0] > 0)
        _stops(device)
        assert fleet.disk("a").pending() == uid
        here, parts = fleet.ledger.arrived(uid, PART)
        assert 0 < here < parts
    device = fleet.device("a")
    settled = device.wait_for("settled")
    assert settled["bytes"] <= (parts - here) * (PART + 32)  # only what was missing
    assert [device.end(), aggregator.end()] == [0, 0]
    fleet.check_undisturbed()


def test_an_aggregator_in_a_round(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a b c", rounds=3)
    aggregator = fleet.aggregator()
    devices = fleet.devices()
    devices["c"].wait_for("welcome")
    devices["c"].pause()
    wait_until(lambda: fleet.ledger.open_and_counted()[1] == ["a", "b"])
    _stops(aggregator)
    devices["c"].resume()
    assert fleet.aggregator().end() == 0
    assert [device.end() for device in devices.values()] == [0, 0, 0]
    fleet.check_undisturbed()


@pytest.mark.parametrize("who", ["a", "aggregator"])
def test_while_there_is_no_broker(make_fleet: MakeFleet, who: str) -> None:
    fleet = make_fleet("a", rounds=1)
    start = fleet.aggregator if who == "aggregator" else lambda **spec: fleet.device("a", **spec)
    waiting = start(broker=DEAD)
    waiting.wait_for("ready")
    _stops(waiting)
    given_up = start(broker=DEAD, options={"connect_timeout": 0.5})
    assert given_up.end() == LinkError.exit_code
    assert "connection refused - start the broker" in given_up.reports("error")[0]["text"]


def test_a_device_whose_aggregator_has_finished_and_gone(make_fleet: MakeFleet) -> None:
    """Its last update was counted, and it died before the receipt: it asks, and gives up."""
    fleet = make_fleet("a", rounds=1)
    aggregator = fleet.aggregator()
    die = {"at": "Store.settle", "when": "before"}
    assert fleet.device("a", die=die).end() == KILLED
    assert aggregator.end() == 0
    late = fleet.device("a", options={"connect_timeout": 1.5})
    assert late.end() == 0
    uid = fleet.disk("a").pending()
    assert uid is not None
    assert late.reports("unsettled") == [{"kind": "unsettled", "uid": uid.hex()}]
    assert fleet.ledger.uids() == {uid}
    assert fleet.gap() == 0  # the pending change of c_i is part of what is committed
    again = fleet.aggregator(options={"linger": 3.0})
    assert fleet.device("a").end() == 0
    assert again.end() == 0
    fleet.check_undisturbed()


def _stops(child: Child) -> None:
    """It ends well, and soon."""
    began = time.monotonic()
    assert child.stop() == 0
    took = time.monotonic() - began
    assert took < 5
