"""Links that are cut again and again, that are slow, and that lose acknowledgements."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from faults.rows import record
from support.fault_proxy import FaultProxy
from support.fleet import KILLED, Fleet, MakeFleet, needs_mosquitto
from support.processes import wait_until
from support.toy_plans import linear_loss

from kellet.sdk import Plan
from kellet.sdk.transport.url import parse_url
from kellet.server.brokers import BrokerHandle

ONE_STEP = {"name": "scaffold", "local_lr": 0.1, "local_steps": 1, "batch_size": 0}
KB = 1000
SLOW = [pytest.mark.slow, pytest.mark.timeout(400)]
MOSQUITTO = [*SLOW, needs_mosquitto]
BOTH = ["embedded", pytest.param("mosquitto", marks=needs_mosquitto)]


def one_update(make_fleet: MakeFleet, parameters: int, **config: Any) -> Fleet:
    """A fleet of one device and one round, whose update has four bytes a parameter."""
    x = np.random.default_rng(3).standard_normal((2, parameters)).astype(np.float32)
    clients = {"a": (x, np.zeros(2, np.int64))}
    plan = linear_loss(parameters)
    return make_fleet(clients, plan=plan, algorithm=ONE_STEP, rounds=1, **config)


@pytest.mark.parametrize(
    ("broker", "update", "most"),
    [
        ("embedded", (500_000, 64 << 10, 400 * KB), 1.3),
        pytest.param("embedded", (750_000, 64 << 10, 250 * KB), 1.3, marks=SLOW),
        pytest.param("mosquitto", (750_000, 64 << 10, 250 * KB), 1.3, marks=MOSQUITTO),
        # Of parts of 256 KB one passes in 500 KB, and most of another is lost: once.
        pytest.param("mosquitto", (750_000, 256 << 10, 250 * KB), 1.3, marks=MOSQUITTO),
    ],
    indirect=["broker"],
)
def test_a_link_that_is_cut_every_500_kb(
    make_fleet: MakeFleet,
    broker: BrokerHandle,
    update: tuple[int, int, float],
    most: float,
) -> None:
    parameters, part_size, rate = update
    fleet = one_update(make_fleet, parameters, part_size=part_size)
    with FaultProxy(parse_url(broker.url).port) as proxy:
        aggregator = fleet.aggregator()
        device = fleet.device("a", broker=proxy.url)
        device.wait_for("fetched")
        before, began = proxy.bytes_up, time.monotonic()
        proxy.rate_up, proxy.cut_after = rate, 500 * KB
        device.wait_for("settled", timeout=250)
        sent, took = proxy.bytes_up - before, time.monotonic() - began
        proxy.rate_up = proxy.cut_after = None
        cuts = len(device.reports("link_lost"))
        assert device.end() == 0
    assert aggregator.end() == 0
    fleet.check_undisturbed()
    body = 4 * parameters
    print(f"{cuts} cuts, {sent / body:.2f} times the bytes, {took:.1f} s")
    assert cuts >= body // (500 * KB)
    assert sent < most * body
    record(
        f"a link that is cut every 500 KB, {broker.kind} broker, parts of {part_size >> 10} KB",
        cuts,
        "counted once",
        f"{body / 1e6:.1f} MB took {sent / body:.2f} times their bytes and {took:.0f} s",
    )


@pytest.mark.parametrize(
    ("broker", "update", "keepalive"),
    [
        ("embedded", (125_000, 16 << 10, 50 * KB), 2),
        pytest.param("embedded", (750_000, 64 << 10, 100 * KB), 5, marks=SLOW),
        pytest.param("mosquitto", (750_000, 256 << 10, 100 * KB), 5, marks=MOSQUITTO),
    ],
    indirect=["broker"],
)
def test_an_update_that_takes_many_keepalives(
    make_fleet: MakeFleet,
    broker: BrokerHandle,
    update: tuple[int, int, float],
    keepalive: int,
) -> None:
    parameters, part_size, rate = update
    fleet = one_update(make_fleet, parameters, part_size=part_size)
    options = {"keepalive": keepalive}
    with FaultProxy(parse_url(broker.url).port) as proxy:
        aggregator = fleet.aggregator(options=options)
        device = fleet.device("a", broker=proxy.url, options=options)
        device.wait_for("fetched")
        before, began = proxy.bytes_up, time.monotonic()
        proxy.rate_up = rate
        device.wait_for("settled", timeout=120)
        sent, took = proxy.bytes_up - before, time.monotonic() - began
        proxy.rate_up = None
        assert device.end() == 0
        assert device.reports("link_lost") == []
    assert aggregator.end() == 0
    fleet.check_undisturbed()
    body = 4 * parameters
    assert took > 3 * keepalive
    assert sent < 1.1 * body  # nothing is sent twice because it takes long
    record(
        f"a slow upload, {broker.kind} broker, {rate / KB:.0f} KB/s, keepalive {keepalive} s",
        1,
        "counted once, the link was never given up",
        f"{body / 1e6:.1f} MB in {took:.0f} s, {sent / body:.2f} times their bytes",
    )


def test_a_download_that_takes_many_keepalives(make_fleet: MakeFleet, broker: BrokerHandle) -> None:
    """Case 21: plan, model and control come for longer than a silent link is borne."""
    fleet = one_update(make_fleet, 10_000, part_size=8 << 10)
    options = {"keepalive": 2}
    with FaultProxy(parse_url(broker.url).port) as proxy:
        proxy.rate_down = 20 * KB
        aggregator = fleet.aggregator(options=options)
        device = fleet.device("a", broker=proxy.url, options=options)
        device.wait_for("welcome")
        began = time.monotonic()
        fetched = device.wait_for("fetched")["bytes"]
        took, came = time.monotonic() - began, proxy.bytes_down
        proxy.rate_down = None
        assert device.end() == 0
        assert device.reports("link_lost") == []
    assert aggregator.end() == 0
    fleet.check_undisturbed()
    assert took > 6
    assert came < 1.15 * fetched  # nothing is asked for twice because it takes long
    record(
        "a slow download, embedded broker, 20 KB/s, keepalive 2 s",
        1,
        "the link was never given up",
        f"{fetched / 1e3:.0f} KB in {took:.0f} s, {came / fetched:.2f} times their bytes",
    )


@pytest.mark.parametrize("broker", BOTH, indirect=True)
def test_training_for_three_keepalives_is_not_death(
    make_fleet: MakeFleet, broker: BrokerHandle
) -> None:
    """The training thread holds the interpreter; the link lives, and the round waits."""
    steps = {"name": "scaffold", "local_lr": 0.1, "local_steps": 80, "batch_size": 8}
    fleet = make_fleet("a b", algorithm=steps, rounds=1, target=2, quorum=1)
    options = {"keepalive": 1}
    aggregator = fleet.aggregator(options=options)
    busy = fleet.device("a", options=options, step_seconds=0.05)
    other = fleet.device("b", options=options)
    busy.wait_for("fetched")
    began = time.monotonic()
    busy.wait_for("trained")
    took = time.monotonic() - began
    assert took > 3
    assert aggregator.end() == 0
    assert [busy.end(), other.end()] == [0, 0]
    assert busy.reports("link_lost") == []
    fleet.check_undisturbed()  # both were counted in the one round
    record(
        f"training for three keepalives, {broker.kind} broker",
        1,
        "counted in its round, the link was never given up",
        f"{took:.1f} s at a keepalive of 1 s",
    )


@pytest.mark.parametrize("broker", BOTH, indirect=True)
def test_killed_in_the_middle_of_a_handshake(
    make_fleet: MakeFleet, wide_plan: Plan, broker: BrokerHandle
) -> None:
    """Case 24: what was published was never acknowledged, and then its sender dies."""
    part = 4096  # few, so that the window of what is not acknowledged is never full
    fleet = make_fleet("a b", plan=wide_plan, rounds=4, part_size=part)
    port = parse_url(broker.url).port
    with FaultProxy(port) as way_a, FaultProxy(port) as way_server:
        counted = {"at": "Ledger.write_update", "when": "after", "count": 7}  # in round 4
        aggregator = fleet.aggregator(broker=way_server.url, die=counted)
        other = fleet.device("b")
        # In round 1: its update is counted, the receipt is here and not written down.
        device = fleet.device("a", broker=way_a.url, die={"at": "Store.settle", "when": "before"})
        device.wait_for("fetched")
        way_a.drop_puback = True
        assert device.end() == KILLED
        lost = way_a.dropped_pubacks
        assert lost >= 1
        # In round 2: some parts have arrived.
        way_a.drop_puback = False
        device = fleet.device("a", broker=way_a.url)
        device.wait_for("settled", round=1)
        way_a.rate_up, way_a.drop_puback = 6_000.0, True
        device.wait_for("trained", round=2)
        uid = fleet.disk("a").pending()
        assert uid is not None
        wait_until(lambda: fleet.ledger.arrived(uid, part)[0] > 0)
        device.kill()
        way_a.rate_up, way_a.drop_puback = None, False
        device = fleet.device("a", broker=way_a.url)
        # In round 4: what the aggregator published to the others was never acknowledged.
        aggregator.wait_for("round", round=3)
        way_server.drop_puback = True
        assert aggregator.end() == KILLED
        way_server.drop_puback = False
        aggregator = fleet.aggregator(broker=way_server.url)
        assert aggregator.end() == 0
        assert [device.end(), other.end()] == [0, 0]
    fleet.check_undisturbed()
    record(
        f"killed while a publication was not acknowledged, {broker.kind} broker",
        3,
        "each update counted once, gap 0",
        f"{way_a.dropped_pubacks + way_server.dropped_pubacks} acknowledgements lost",
    )
