"""Killed at every named point, a process starts again, and its fleet keeps every promise."""

from __future__ import annotations

import pytest
from faults.crashes import ROLES, Death, die, points

PER_POINT = 20


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, int]]:
    return points()


def test_the_points_are_everywhere(found: dict[str, dict[str, int]]) -> None:
    server, device = found["server"], found["b"]
    for name in ("keep", "write_update", "close_round", "open_round", "new_epoch", "write_member"):
        assert server[f"before {name}"] == server[f"after {name}"] > 0
    for name in ("save_pending", "settle", "new_epoch", "enrol_anew"):
        assert device[f"before {name}"] == device[f"after {name}"] > 0
    for role in ROLES:
        assert found[role]["sql, torn commit"] > 0
        assert len(found[role]) >= 50


@pytest.mark.parametrize("role", ROLES)
def test_every_point_once(found: dict[str, dict[str, int]], role: str) -> None:
    died = 0
    for index, (point, passed) in enumerate(sorted(found[role].items())):
        death = Death(role, point, times=1 + index % max(1, passed // 2), seed=index % 4)
        broken, deaths = die(death)
        assert not broken, f"{death}: {broken}"
        died += deaths > 0
    assert died >= 0.9 * len(found[role])


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("role", ROLES)
def test_every_point_many_times(found: dict[str, dict[str, int]], role: str) -> None:
    for point, passed in sorted(found[role].items()):
        died = 0
        for seed in range(PER_POINT):
            broken, deaths = die(
                Death(role, point, times=1 + seed % max(1, passed // 2), seed=seed)
            )
            assert not broken, f"{role} {point} {seed}: {broken}"
            died += deaths > 0
        assert died, point
