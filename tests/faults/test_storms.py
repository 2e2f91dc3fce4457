"""Hundreds of fleets, each in the weather and with the misfortunes that its seed draws."""

from __future__ import annotations

from collections import Counter

import pytest
from faults import storms

SEEDS = 200
BLOCK = 20


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_every_promise_holds_after_every_event(first: int) -> None:
    for seed in range(first, first + BLOCK):
        done = storms.run(seed)
        assert not done.broken, f"{done.text}\nreplay: {storms.command(seed)}"


def test_a_seed_is_replayed_to_the_bit() -> None:
    one, two = storms.run(11), storms.run(11)
    assert one == two
    assert one.digest


def test_the_storms_are_storms() -> None:
    """All that can befall a fleet does; and what is counted goes on being counted."""
    tally: Counter[str] = Counter()
    counted = 0
    for seed in range(300, 330):
        done = storms.run(seed)
        assert not done.broken, f"{done.text}\nreplay: {storms.command(seed)}"
        tally.update(done.tally)
        counted += done.counted
    wanted = {
        "aggregator restored from a backup",
        "aggregator to be killed",
        "aggregator's disk full",
        "aggregator's disk to fail",
        "card cloned",
        "card restored",
        "clock jumped",
        "device to be killed",
        "device's disk full",
        "device's disk to fail",
        "ended by its disk",
        "ended: another process uses the id",
        "left",
        "link cut",
        "may not train",
        "message cut short",
        "message lost",
        "message lost in a partition",
        "message repeated",
        "message with a flipped bit",
        "new epoch",
        "partition",
        "told to leave",
        "training failed",
    }
    assert not wanted - set(+tally)
    assert counted > 200


def test_a_trace_tells_what_happened() -> None:
    lines: list[str] = []
    storms.run(1, trace=lines.append)
    assert any("server" in line and "took {'t': 'hello'" in line for line in lines)
    assert any("said {'t': 'receipt'" in line for line in lines)
