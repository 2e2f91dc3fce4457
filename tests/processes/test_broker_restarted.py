"""The broker dies again and again, and forgets everything; the fleet loses nothing."""

from __future__ import annotations

import pytest
from support.fleet import MakeFleet, needs_mosquitto

from kellet.server.brokers import BrokerHandle

ROUNDS = 100
EVERY = 10


@pytest.mark.parametrize(
    "broker",
    ["embedded", pytest.param("mosquitto", marks=[pytest.mark.slow, needs_mosquitto])],
    indirect=True,
)
def test_restarted_every_ten_rounds(make_fleet: MakeFleet, broker: BrokerHandle) -> None:
    fleet = make_fleet("a b c", rounds=ROUNDS)
    aggregator = fleet.aggregator()
    devices = fleet.devices()
    for round_ in range(EVERY, ROUNDS, EVERY):
        aggregator.wait_for("round", round=round_)
        broker.restart()
    assert aggregator.end() == 0
    assert [device.end() for device in devices.values()] == [0, 0, 0]
    assert broker.starts == ROUNDS // EVERY
    for child in (aggregator, *devices.values()):
        assert len(child.reports("link_lost")) == broker.starts - 1
    fleet.check_undisturbed()
