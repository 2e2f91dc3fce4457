"""Case 28: devices of random speed, in one round after the other, none ahead of what is there."""

from __future__ import annotations

import pytest
from faults.processes.crowds import Crowd, linear_clients
from faults.rows import record
from support.fleet import MakeFleet
from support.toy_plans import linear_loss

STEPS = {"name": "scaffold", "local_lr": 0.01, "local_steps": 2, "batch_size": 1}


@pytest.mark.parametrize(
    "rounds", [25, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(400)])]
)
def test_ten_devices_of_random_speed(make_fleet: MakeFleet, rounds: int) -> None:
    """The same bits as where all are equally fast (cases 28 and 31)."""
    fleet = make_fleet(
        linear_clients(10, 400), plan=linear_loss(400), algorithm=STEPS, rounds=rounds
    )
    aggregator = fleet.aggregator(options={"linger": 2.0})
    crowd = Crowd(fleet, links=5, pause=0.1)
    crowd.end(350)
    assert aggregator.end() == 0
    crowd.check()
    record(
        "10 devices at random speeds, a round after the other",
        rounds,
        "the digest of the simulation, each update counted once",
    )
