"""Rounds leave memory, threads and open files as they were."""

from __future__ import annotations

from statistics import median
from typing import Any

import psutil
import pytest
from faults.rows import record
from support.broker_load import slope
from support.fleet import MakeFleet
from support.toy_plans import softmax_regression

from kellet.server.brokers import BrokerHandle

MB = 1 << 20


@pytest.mark.parametrize(
    "rounds", [60, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_nothing_grows_with_the_rounds(
    make_fleet: MakeFleet, broker: BrokerHandle, rounds: int
) -> None:
    """With 60,003 parameters: who holds on to one vector in each round gains 240 KB a round."""
    fleet = make_fleet("a b", plan=softmax_regression(20_000, 3), rounds=rounds)
    aggregator = fleet.aggregator()
    devices = fleet.devices()
    assert broker.pid is not None
    watched = {
        "aggregator": aggregator.usage,
        "a": devices["a"].usage,
        "b": devices["b"].usage,
        "broker": psutil.Process(broker.pid),
    }
    memory: dict[str, list[float]] = {name: [] for name in watched}
    threads: dict[str, list[int]] = {name: [] for name in watched}
    files: dict[str, list[int]] = {name: [] for name in watched}
    traffic = []
    for round_ in range(1, rounds):
        closed = aggregator.wait_for("round", round=round_)
        traffic.append((closed["uplink_bytes"] + closed["downlink_bytes"]) / MB)
        for name, process in watched.items():
            memory[name].append(process.memory_info().rss / MB)
            threads[name].append(process.num_threads())
            files[name].append(process.num_fds())
    assert aggregator.end() == 0
    assert [device.end() for device in devices.values()] == [0, 0]
    fleet.check_undisturbed()
    for name in watched:
        assert min(_late(threads[name])) <= min(_early(threads[name])), name
        assert min(_late(files[name])) <= min(_early(files[name])), name
    grown = {name: median(_late(memory[name])) - median(_early(memory[name])) for name in watched}
    # SQLite takes up to 4 MB once, for pages and when it copies its log back; a vector a round
    # would be 7 MB at least.
    assert max(grown["aggregator"], grown["a"], grown["b"]) < 6, grown
    # The broker keeps the last 24 MB of each filter. Until that is full it grows with the traffic.
    passed = median(_late(traffic)) - median(_early(traffic))
    assert grown["broker"] < (5 if rounds >= 300 else 1.5 * passed), (grown, passed)
    half = {name: slope(values[rounds // 2 :]) * 1024 for name, values in memory.items()}
    record(
        "rounds one after the other, 2 processes and the embedded broker",
        rounds,
        "memory, threads and open files flat",
        "KB a round in the second half: "
        + ", ".join(f"{name} {each:.1f}" for name, each in half.items()),
    )


def _early(values: list[Any]) -> list[Any]:
    """The sixth before the middle."""
    return values[len(values) // 3 : len(values) // 2]


def _late(values: list[Any]) -> list[Any]:
    """The last sixth."""
    return values[-(len(values) // 6) :]
