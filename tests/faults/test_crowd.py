"""Rounds without most of their devices, all devices at once, and rounds without end."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.crowd import close_without, growth, memory_by_round, rush, simulated

ADMISSION = 100_000


@pytest.mark.parametrize(("share", "left"), [(0.3, 14), (0.5, 10), (0.7, 6), (0.9, 2)])
def test_a_round_closes_at_its_deadline_without_the_others(share: float, left: int) -> None:
    seconds, counted = close_without(share, deadline=60.0)
    assert 60.0 <= seconds <= 1.05 * 60.0
    assert counted == left


def test_all_upload_at_once(tmp_path: Path) -> None:
    """Admitted by bytes; all are counted, and in any order to the same model."""
    one = rush(200, n=600, admission=ADMISSION, folder=tmp_path / "1", seed=1)
    two = rush(200, n=600, admission=ADMISSION, folder=tmp_path / "2", seed=2)
    for result in (one, two):
        assert result.counted == 200
        assert result.busy > 0
        assert 0.9 * ADMISSION < result.most_bytes_granted <= ADMISSION
    assert one.digest == two.digest


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_thousand_upload_at_once(tmp_path: Path) -> None:
    result = rush(1000, n=4000, admission=1 << 20, folder=tmp_path)
    assert result.counted == 1000
    assert result.most_bytes_granted <= 1 << 20
    # 16 MB came; what is granted, the model's sums, and a line of facts for each device stay.
    assert result.peak_kb < 2 * 1024 + 64 * 4000 / 1024 + 2 * 1000


def test_rounds_leave_nothing_behind() -> None:
    held = memory_by_round(150, every=10)
    assert abs(growth(held)) < 1.0  # KB in ten rounds; an update has 0.5 KB


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_hundred_rounds_leave_nothing_behind() -> None:
    assert abs(growth(memory_by_round(500, every=10))) < 1.0


@pytest.mark.parametrize("devices", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.timeout(3600)
def test_a_simulated_fleet_is_replayed_to_the_same_digest(devices: int) -> None:
    done = simulated(devices)
    assert done.counted == [devices] * 2
    assert done.digests[0] == done.digests[1]
    assert done.exact
