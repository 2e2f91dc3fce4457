"""A crowd that has to wait: asked back in turn, not all in one moment, and the room never idle."""

from __future__ import annotations

import heapq
from collections import Counter

import pytest
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.protocol.messages import Busy
from kellet.server.patience import FORGOTTEN, LONGEST, SHORTEST, Queue, spread

MB = 1_000_000


def test_half_of_a_wait_is_left_to_the_device_s_name() -> None:
    waits = [spread(8.0, f"device-{i}", 0) for i in range(1000)]
    assert 4.0 < min(waits) < 4.05
    assert 7.95 < max(waits) <= 8.0
    assert sum(waits) / 1000 == pytest.approx(6.0, abs=0.1)
    assert waits == [spread(8.0, f"device-{i}", 0) for i in range(1000)]
    assert spread(8.0, "device-1", 1) != spread(8.0, "device-1", 0)


def wait_of(queue: Queue, name: str, now: float = 0.0, oldest: float = 0.0) -> float:
    """Seconds that an update of 1 MB is to wait, without what is left to the name."""
    tries = seen.update([name]) or seen[name] - 1
    return queue.after(name, name.encode(), MB, now, oldest=oldest) / spread(1.0, name, tries)


seen: Counter[str] = Counter()


def test_an_upload_waits_for_those_before_it() -> None:
    """Room for 2 MB, emptied in 10 s: 5 s for each MB that came before."""
    seen.clear()
    queue = Queue(2 * MB)
    for _ in range(60):
        queue.took(10.0)
    waits = [wait_of(queue, f"d{i}") for i in range(20)]
    assert waits == pytest.approx([SHORTEST, *range(5, 60, 5), *[LONGEST] * 8], rel=1e-4)
    assert len(queue) == 20
    for i in range(4):  # were granted
        queue.leave(f"d{i}".encode())
    assert wait_of(queue, "d5") == pytest.approx(5.0, rel=1e-4)  # one is before it
    assert wait_of(queue, "d4") == SHORTEST
    assert wait_of(queue, "new") == pytest.approx(LONGEST)  # behind all that wait


def test_uploads_that_take_long_are_seen_before_one_has_ended() -> None:
    seen.clear()
    queue = Queue(2 * MB)
    for i in range(4):
        wait_of(queue, f"d{i}")
    assert wait_of(queue, "d3", now=20.0, oldest=0.0) == pytest.approx(1.5 * 20)


def test_who_does_not_come_again_is_forgotten() -> None:
    seen.clear()
    queue = Queue(MB)
    for i in range(8):
        wait_of(queue, f"d{i}")
    assert wait_of(queue, "d8", now=2 * FORGOTTEN, oldest=2 * FORGOTTEN) == SHORTEST
    assert len(queue) == 1


def crowd(devices: int, size: int, room: int, rate: float) -> tuple[float, int, int]:
    """All offer in one moment; those who are granted share a link, one behind the other.

    (Seconds that it took, as a multiple of those that the bytes take; how often somebody was
    told to wait after the first second, in all and in the worst second.)
    """
    queue = Queue(room)
    events = [(1e-4 * i, i, True) for i in range(devices)]
    granted, free, now, left = 0, 0.0, 0.0, devices
    began: dict[int, float] = {}
    told: Counter[int] = Counter()
    while left:
        now, i, offers = heapq.heappop(events)
        uid = str(i).encode()
        if not offers:
            left, granted = left - 1, granted - size
            queue.took(now - began.pop(i))
        elif granted and granted + size > room:
            told[int(now)] += 1
            oldest = next(iter(began.values()))
            again = now + queue.after(f"device-{i}", uid, size, now, oldest=oldest)
            heapq.heappush(events, (again, i, True))
        else:
            queue.leave(uid)
            granted, began[i] = granted + size, now
            free = max(free, now) + size / rate
            heapq.heappush(events, (free, i, False))
    del told[0]
    return now / (devices * size / rate), told.total(), max(told.values())


@pytest.mark.parametrize(
    ("rate", "longer", "each", "at_once"),
    [
        # A fixed second: 1.9 times as long, told 45 times each, 980 of them in one second.
        (2 * MB, 1.25, 0.4, 60),
        (20 * MB, 2.0, 0.6, 250),  # five seconds in all, of which the first was for nothing
        (200_000, 1.05, 40, 400),  # 500 s: so slow that the first second says nothing of it
    ],
)
def test_a_thousand_devices(rate: float, longer: float, each: float, at_once: int) -> None:
    took, told, worst = crowd(1000, 100_000, MB, rate)
    assert took < longer
    assert told < each * 1000
    assert worst < at_once


def test_a_full_cohort_asks_a_crowd_back_a_hundred_a_second() -> None:
    lab = Lab(linear_loss(4), FedAvg(), target=1, over_select=1.0, deadline=60.0)
    Puppet(lab, "first").join()
    waits = []
    for i in range(400):
        answer = Puppet(lab, f"d{i}").join()
        assert isinstance(answer, Busy)
        waits.append(answer.after / spread(1.0, f"d{i}", 0))
    assert waits == pytest.approx([max(1.0, (i + 1) / 100) for i in range(400)], rel=1e-5)
