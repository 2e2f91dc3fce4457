"""Check the checker: bugs that are put in on purpose are found, and by what."""

from __future__ import annotations

import pytest
from faults import storms
from faults.planted import PLANTED

SEEDS = 12  # in which a bug has to be found


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, record_property: pytest.RecordProperty) -> None:
    bug = PLANTED[name]
    events = 0
    for seed in range(SEEDS):
        done = storms.run(seed, plant=bug.plant, algorithm=bug.algorithm, buffers=bug.buffers)
        if done.broken:
            break
        events += done.events
    record_property("found by", done.broken)
    record_property("after events", events + done.at_event)
    print(f"{name}: found by {done.broken!r} after {events + done.at_event} events")
    assert done.broken in bug.found_by, done.text or f"not found in {SEEDS} fleets"


def test_without_a_bug_the_same_fleets_keep_every_promise() -> None:
    for algorithm, buffers in {(bug.algorithm, bug.buffers) for bug in PLANTED.values()}:
        for seed in range(4):
            done = storms.run(seed, algorithm=algorithm, buffers=buffers)
            assert not done.broken, done.text
