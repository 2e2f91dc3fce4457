"""Devices, broker and aggregator of one fleet are killed at seeded moments, on links that break."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest
from faults.processes.chaos import Chaos
from faults.rows import record
from support.fault_proxy import FaultProxy
from support.fleet import MakeFleet, needs_mosquitto

from kellet.sdk import Plan
from kellet.sdk.transport.url import parse_url
from kellet.server.brokers import BrokerHandle

EIGHT = "a b c d e f g h"
PART = 1024
QUICK = {"name": "scaffold", "local_lr": 0.1, "local_steps": 20, "batch_size": 8}
# Of this run, by broker: what was done, over how many seeds.
TALLIES: defaultdict[str, Counter[str]] = defaultdict(Counter)
BOTH = ["embedded", pytest.param("mosquitto", marks=needs_mosquitto)]


@pytest.mark.parametrize("broker", BOTH, indirect=True)
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 5))]
)
@pytest.mark.timeout(300)
def test_nothing_is_lost(
    make_fleet: MakeFleet, wide_plan: Plan, broker: BrokerHandle, seed: int
) -> None:
    """C is the sum of what lies on the disks; each update counted once; the replay's model."""
    rounds = 8
    fleet = make_fleet(EIGHT, plan=wide_plan, algorithm=QUICK, rounds=rounds, part_size=PART)
    with FaultProxy(parse_url(broker.url).port) as proxy:
        chaos = Chaos(fleet, proxy, seed, hurts=30)
        chaos.run()
    fleet.check_undisturbed()
    assert chaos.kills >= 5
    tally = TALLIES[broker.kind]
    tally.update(chaos.tally, seeds=1, kills=chaos.kills)
    told = ", ".join(f"{tally[what]} {what}" for what in sorted(tally) if what != "kills")
    record(
        f"kill -9 of 8 devices, aggregator and {broker.kind} broker on breaking links",
        tally["kills"],
        "each receipted update counted once, C = sum of c_i, the model of the plain replay",
        f"{rounds} rounds for each seed; {told}",
    )
