"""Without faults a fleet of processes comes to the bits of the simulation."""

from __future__ import annotations

from support.fleet import MakeFleet


def test_processes_give_the_simulations_bits(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a b c", rounds=5)
    aggregator = fleet.aggregator()
    devices = fleet.devices()
    assert aggregator.end() == 0
    assert [device.end() for device in devices.values()] == [0, 0, 0]
    fleet.check_undisturbed()
