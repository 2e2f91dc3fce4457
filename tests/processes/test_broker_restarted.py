"""The broker dies again and again, and forgets everything; the fleet loses nothing."""

from __future__ import annotations

import queue
import time

import pytest
from faults.rows import record
from support.fleet import MakeFleet, needs_mosquitto

from kellet.sdk.transport.base import Connected, TransportEvent
from kellet.sdk.transport.mqtt import MqttTransport
from kellet.server.brokers import BrokerHandle

EVERY = 10
PAUSE = 0.12  # s in each round: who has been connected for less than 1 s waits longer each time


@pytest.mark.parametrize(
    ("broker", "rounds"),
    [
        ("embedded", 100),
        pytest.param("mosquitto", 30, marks=needs_mosquitto),
        pytest.param(
            "mosquitto", 100, marks=[pytest.mark.slow, pytest.mark.timeout(300), needs_mosquitto]
        ),
    ],
    indirect=["broker"],
)
def test_restarted_every_ten_rounds(
    make_fleet: MakeFleet, broker: BrokerHandle, rounds: int
) -> None:
    fleet = make_fleet("a b c", rounds=rounds)
    aggregator = fleet.aggregator()
    devices = {name: fleet.device(name, pause=PAUSE) for name in fleet.clients}
    for round_ in range(EVERY, rounds, EVERY):
        aggregator.wait_for("round", round=round_)
        broker.restart()
    assert aggregator.end() == 0
    assert [device.end() for device in devices.values()] == [0, 0, 0]
    assert broker.starts == rounds // EVERY
    for child in (aggregator, *devices.values()):
        assert len(child.reports("link_lost")) == broker.starts - 1
    fleet.check_undisturbed()
    record(
        f"{broker.kind} broker killed and started anew every ten rounds",
        broker.starts - 1,
        "each update counted once, gap 0, the undisturbed run's models",
        f"{rounds} rounds of 3 processes",
    )


def test_both_connections_come_back_together(broker: BrokerHandle) -> None:
    """The one for parts does not go on waiting when the other has found the broker again."""
    events: queue.SimpleQueue[TransportEvent] = queue.SimpleQueue()
    with MqttTransport(broker.url, "two", events.put, separate_bulk=True) as link:
        link.wait_connected(30.0, patient=True)
        assert isinstance(events.get(timeout=1), Connected)
        for _ in range(4):  # each life is short, and so each pause is longer than the one before
            broker.restart()
            while not isinstance(events.get(timeout=30), Connected):
                pass
            deadline = time.monotonic() + 0.5
            while not link.publish("kellet/1/two/part", b"x", bulk=True):
                assert time.monotonic() < deadline
                time.sleep(0.005)
