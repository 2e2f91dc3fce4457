"""Every point at which a process can die, by name; and a fleet in which it dies there.

The points are found, not listed: a fleet in fair weather passes by all of them, and says which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from faults.account import Broken
from faults.storms import PLAN, scratch
from faults.world import Climate, World, drawn_from

from kellet.sdk.algorithms import Scaffold
from kellet.sdk.device import Leave

__all__ = ["ROLES", "Death", "die", "points"]

ROLES = ("server", "b")
_WEATHER = Climate(lost=0.03, twice=0.1, slowest=0.2, stale=5.0)


@dataclass(frozen=True)
class Death:
    """``role`` dies when it passes by ``point`` for the ``times``-th time."""

    role: str
    point: str
    times: int
    seed: int

    def __str__(self) -> str:
        return f"{self.role} dies at {self.point!r}, time {self.times}, seed {self.seed}"


def points(seed: int = 0) -> dict[str, dict[str, int]]:
    """The points of an undisturbed fleet by role, and how often each is passed by."""
    with scratch() as folder, drawn_from(Random(f"nonces {seed}")):
        world = _live(_world(folder, seed, None))
        return {role: dict(_node(world, role).points.seen) for role in ROLES}


def die(death: Death) -> tuple[str, int]:
    """Let it happen. (What was broken or "", how often a process died.)"""
    with scratch() as folder, drawn_from(Random(f"nonces {death.seed}")):
        world = _world(folder, death.seed, death)
        try:
            _live(world)
        except Broken as broken:
            return str(broken), _node(world, death.role).life
        finally:
            world.close()
        return "", _node(world, death.role).life


def _node(world: World, role: str) -> Any:
    return world.server if role == "server" else world.devices[role]


def _world(folder: Path, seed: int, death: Death | None) -> World:
    luck = Random(f"crashes {seed}")
    rows = {name: np.full((2, 3), luck.randrange(-8, 9) / 8) for name in "abc"}
    algorithms = [
        Scaffold(local_lr=0.125, batch_size=1, local_steps=2),
        Scaffold(local_lr=0.125, batch_size=1, local_steps=2, delta_c="f32"),
    ]
    return World(
        folder,
        PLAN,
        rows,
        algorithms[seed % 2],
        seed=seed,
        climate=_WEATHER,
        arm={death.role: (death.point, death.times)} if death else None,
        rounds=3,
        target=3,
        quorum=1,
        deadline=90.0,
    )


def _live(world: World) -> World:
    """Three rounds, an epoch in the second, and one device that leaves and comes back."""
    world.start()
    world.run(lambda: world.server.alive and world.server.machine.round >= 2)
    world.server.new_epoch()
    world.run(lambda: world.server.alive and world.server.machine.round >= 3)
    for node in world.nodes:
        node.cut()
        node.connect()
    _when_up(world, lambda: world.devices["b"].take(Leave()))
    world.run()
    world.heal()
    world.check_end()
    return world


def _when_up(world: World, then: Callable[[], None]) -> None:
    device = world.devices["b"]
    world.run(lambda: device.alive and device.up)
    then()
