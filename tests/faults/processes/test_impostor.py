"""Case 33: a client with one device's password speaks as another, while a fleet is at work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from faults.rows import record
from support.fleet import Fleet, MakeFleet, needs_mosquitto

from kellet.sdk.protocol import wire
from kellet.sdk.protocol.messages import Hello, Idle, Receipt, Reject, State
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.transport.base import TransportEvent
from kellet.sdk.transport.mqtt import MqttTransport
from kellet.server.brokers import BrokerHandle, open_broker

pytestmark = needs_mosquitto
USERS = {"a": "of a", "b": "of b", "mallory": "of mallory"}
TOPICS = Topics("kellet")
NONCE, BOOT = b"forged nonce....", b"forged.."


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[BrokerHandle]:
    """Mosquitto with a password for each device, and the rules that Kellet writes."""
    with open_broker("mosquitto", state_dir=tmp_path, users=USERS) as opened:
        yield opened


def _url(broker: BrokerHandle, user: str, password: str) -> str:
    return broker.url.replace("://", f"://{quote(user)}:{quote(password)}@")


def _forgeries() -> list[tuple[str, bytes]]:
    """What would do harm: b is sent away, its work refused, its round over; the fleet is idle."""
    hello = Hello(
        nonce=NONCE, boot=BOOT, incarnation=9, seq=0, pending=None, epoch=None, audit=None
    )
    receipt = Receipt(uid=bytes(16), seq=1, round=1, counted=False, reason="range")
    return [
        (TOPICS.req("b"), wire.pack(hello)),
        (TOPICS.state("b"), wire.pack(State(online=False, boot=BOOT))),
        (TOPICS.ctl("b"), wire.pack(Reject(code="fenced", reason="forged"))),
        (TOPICS.ctl("b"), wire.pack(receipt)),
        (TOPICS.round, wire.pack(Idle(reason="finished", round=1))),
        (TOPICS.up("0", "b"), b"KLTP forged"),
    ]


def _forge(url: str, fleet: Fleet, rounds: int) -> int:
    """Publish the forgeries until the fleet has closed so many rounds. How many there were."""

    def ignore(_event: TransportEvent) -> None: ...

    published = 0
    with MqttTransport(url, "mallory", ignore) as link:
        link.wait_connected(30.0, patient=True)
        until = time.monotonic() + 60
        while len(fleet.ledger.models()) < rounds and time.monotonic() < until:
            for topic, payload in _forgeries():
                published += link.publish(topic, payload)
            time.sleep(0.02)
    return published


@pytest.mark.parametrize("user", ["mallory", "a"])
def test_a_neighbours_password_is_of_no_use(
    make_fleet: MakeFleet, guarded: BrokerHandle, user: str
) -> None:
    fleet = make_fleet("a b", broker=guarded, rounds=8)
    assert guarded.username is not None
    assert guarded.password is not None
    aggregator = fleet.aggregator(broker=_url(guarded, guarded.username, guarded.password))
    devices = [fleet.device(n, broker=_url(guarded, n, USERS[n]), pause=0.1) for n in "ab"]
    aggregator.wait_for("round_opened")
    published = _forge(_url(guarded, user, USERS[user]), fleet, 7)
    assert aggregator.end() == 0
    assert [device.end() for device in devices] == [0, 0]
    assert published > len(_forgeries())
    enrolled = [report["device"] for report in aggregator.reports("enrolled")]
    assert sorted(enrolled) == ["a", "b"]
    for child in (aggregator, *devices):
        assert child.reports("refused") == []  # not one of them arrived anywhere
    fleet.check_undisturbed()
    record(
        f"messages as another device and as the aggregator, with the password of {user}",
        published,
        "none arrived; the run is the undisturbed one",
    )


@pytest.mark.parametrize("broker", ["mosquitto"], indirect=True)
def test_without_rules_the_same_messages_do_harm(make_fleet: MakeFleet) -> None:
    """The test above can fail: here nothing stands between."""
    fleet = make_fleet("a b", rounds=30)
    aggregator = fleet.aggregator()
    devices = [fleet.device(name, pause=0.2) for name in "ab"]
    aggregator.wait_for("round_opened")
    with MqttTransport(fleet.broker.url, "mallory", lambda _event: None) as link:
        link.wait_connected(30.0, patient=True)
        topic, payload = _forgeries()[0]
        assert link.publish(topic, payload)
        aggregator.wait_for("enrolled", device="b", count=2)
    for child in (aggregator, *devices):
        child.close()
