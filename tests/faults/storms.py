"""What befalls a fleet, all of it decided by a seed; and the run that it comes to."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from faults.account import Broken
from faults.world import Climate, World, drawn_from
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.device import Leave
from kellet.sdk.protocol.vectors import CODECS, Codec

__all__ = ["KINDS", "PLAN", "Reach", "Run", "command", "run", "scratch"]

Reach = Callable[[], World]  # the fleet, once there is one

LASTS = 200.0  # seconds of bad weather
PLAN = softmax_regression(3, 2, initial=0.5)  # 8 parameters: a matrix and a vector
NAMES = "abcd"
ALGORITHMS = [
    Scaffold(local_lr=0.125, batch_size=0, local_steps=2),
    Scaffold(local_lr=0.125, batch_size=1, local_steps=4, lr_decay=0.5),
    Scaffold(local_lr=0.125, batch_size=1, local_steps=3, delta_c="f32"),
    Scaffold(local_lr=0.125, batch_size=2, local_steps=2, option="I", server_lr=0.5),
    Scaffold(local_lr=0.125, batch_size=1, local_steps=3, control_damping=0.25),
    Scaffold(local_lr=0.125, batch_size=1, local_steps=3, delta_c="q8"),
    Scaffold(local_lr=0.125, batch_size=1, local_steps=3, delta_c="topk"),
    FedAvg(local_lr=0.125, batch_size=2),
    FedProx(local_lr=0.125, batch_size=1, mu=0.5),
]
UPLINKS: list[tuple[Codec, ...]] = [("f32",), ("q8",), ("topk",), ("f32", "q8", "topk")]
# What may befall a fleet beside the weather: which of these, the seed says.
KINDS = (
    "cut",
    "partition",
    "device killed",
    "aggregator killed",
    "device's disk fails",
    "aggregator's disk fails",
    "device's disk is full",
    "aggregator's disk is full",
    "clock jumps",
    "card restored",
    "card cloned",
    "backup restored",
    "leave",
    "epoch",
    "may not train",
)


@dataclass
class Run:
    """What became of a seed. ``broken``: the promise that did not hold, or empty."""

    seed: int
    broken: str = ""
    text: str = ""
    at_event: int = 0
    events: int = 0
    checks: int = 0
    rounds: int = 0
    counted: int = 0
    digest: str = ""
    tally: dict[str, int] = field(default_factory=dict)


def command(seed: int) -> str:
    """Replays the seed, and nothing else."""
    return f"python -m tests.faults --first {seed} --seeds 1"


def run(
    seed: int,
    *,
    folder: Path | None = None,
    plant: Callable[[Reach], AbstractContextManager[None]] | None = None,
    algorithm: FedAvg | None = None,
    buffers: bool = False,
    kinds: Iterable[str] = KINDS,
    trace: Callable[[str], None] | None = None,
) -> Run:
    """One fleet, through its storm to the end. ``plant`` puts a bug into the product.

    ``buffers``: late updates are counted, else where the seed says so.
    """
    result = Run(seed)
    with scratch(folder) as here:
        luck = Random(f"storm {seed}")
        reach: list[World] = []
        planted = plant(lambda: reach[0]) if plant else nullcontext()
        with drawn_from(Random(f"nonces {seed}")), planted:
            world = _world(here, luck, seed, algorithm, buffers)
            reach.append(world)
            try:
                _befall(world, luck, tuple(kinds))
                world.trace = trace
                world.start()
                world.let_pass(LASTS)
                world.heal()
                world.check_end()
                result.digest = world.server.machine.digest.hex()
            except Broken as broken:
                result.broken, result.text = broken.check, str(broken)
                result.at_event = world.events
        world.close()
    result.events, result.checks = world.events, world.account.checked
    if hasattr(world.server, "counted"):
        result.counted = len(world.server.counted)
        result.rounds = len(world.server.rounds)
    result.tally = dict(sorted(world.tally.items()))
    return result


class scratch:
    """A folder in memory where there is one: syncing it costs nothing, and thousands are made."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def __enter__(self) -> Path:
        if self._folder is not None:
            return self._folder
        memory = Path("/dev/shm")
        where = memory if memory.is_dir() else None
        self._made = tempfile.mkdtemp(prefix="kellet-faults-", dir=where)
        return Path(self._made)

    def __exit__(self, *_: object) -> None:
        if self._folder is None:
            shutil.rmtree(self._made, ignore_errors=True)


def _world(here: Path, luck: Random, seed: int, algorithm: FedAvg | None, buffers: bool) -> World:
    names = NAMES[: luck.choice([2, 3, 3, 4])]
    rows = {
        name: np.array(
            [[luck.randrange(-8, 9) / 8 for _ in range(3)] for _ in range(luck.choice([1, 2, 5]))]
        )
        for name in names
    }
    chosen = luck.choice(ALGORITHMS)
    rough = luck.choice([0.0, 0.1, 0.25])
    climate = Climate(
        lost=rough,
        twice=luck.choice([0.0, 0.2]),
        torn=luck.choice([0.0, 0.05]),
        flipped=luck.choice([0.0, 0.05]),
        slowest=luck.choice([0.05, 3.0]),
        stale=luck.choice([3.0, 100.0]),
        rate=luck.choice([0.0, 0.0, 400.0]),
    )
    algorithm = algorithm or chosen
    world = World(
        here,
        PLAN,
        rows,
        algorithm,
        seed=seed,
        climate=climate,
        rounds=luck.choice([4, 8]),
        target=luck.randint(1, len(names)),
        quorum=1,
        min_members=luck.choice([1, len(names)]),
        over_select=luck.choice([1.0, 1.5]),
        deadline=luck.choice([30.0, 90.0]),
        member_ttl=luck.choice([7 * 86400.0, 120.0]),
        admission=luck.choice([1024, 1 << 20]),
        **_codecs(luck, names, algorithm),
        **_lateness(Random(f"late {seed}"), buffers),
    )
    world.training_takes = luck.choice([(0.1, 1.0), (1.0, 20.0), (20.0, 80.0)])
    world.partial = luck.choice([0.0, 0.3])
    world.failing = luck.choice([0.0, 0.0, 0.1])
    return world


def _codecs(luck: Random, names: str, algorithm: FedAvg) -> dict[str, Any]:
    """How vectors travel."""
    uplink = luck.choice(UPLINKS)
    derived = isinstance(algorithm, Scaffold) and algorithm.delta_c == "derived"
    return {
        "uplink": uplink,
        "share": 0.3,
        "feedback": luck.random() < 0.5 and not derived and uplink != ("f32",),
        "downlink": luck.choice(["f32", "q8"]),
        "codecs_of": {name: luck.choice(CODECS) for name in names},
    }


def _lateness(luck: Random, buffers: bool) -> dict[str, Any]:
    """What becomes of late updates: a third of the fleets buffer them."""
    if luck.random() >= 1 / 3 and not buffers:
        return {}
    return {"late": "buffer", "buffer": luck.choice([0, 1, 2]), "max_stale": luck.choice([1, 2, 4])}


def _befall(world: World, luck: Random, kinds: tuple[str, ...]) -> None:
    """Put the misfortunes of this seed on the clock: some kinds, several times each."""
    chosen = luck.sample(kinds, min(len(kinds), luck.choice([2, 4, 7])))
    for kind in chosen:
        for _ in range(luck.choice([1, 2, 4])):
            at = luck.uniform(0, LASTS)
            name = luck.choice(sorted(world.devices))
            _MISFORTUNES[kind](world, Random(luck.random()), name, at)
    for node in world.nodes:  # whoever has lost its link comes back some time
        for at in np.arange(20, LASTS, 20):
            world.after(float(at) + luck.uniform(0, 20), node.connect)


def _cut(world: World, luck: Random, name: str, at: float) -> None:
    node: Any = luck.choice([world.server, world.devices[name]])

    def cut() -> None:
        world.tally["link cut"] += node.up
        node.cut()

    world.after(at, cut)


def _partition(world: World, luck: Random, name: str, at: float) -> None:
    node: Any = luck.choice([world.server, world.devices[name]])
    lasts = luck.uniform(1, 60)

    def fall() -> None:
        world.tally["partition"] += 1
        node.dark_until = world.now + lasts

    world.after(at, fall)


def _kill(role: str) -> Callable[[World, Random, str, float], None]:
    def misfortune(world: World, luck: Random, name: str, at: float) -> None:
        node: Any = world.server if role == "aggregator" else world.devices[name]
        more = luck.randint(1, 60)

        def arm() -> None:
            if node.alive:
                world.tally[f"{role} to be killed"] += 1
                node.points.die_at = (None, more)

        world.after(at, arm)

    return misfortune


def _fail(role: str) -> Callable[[World, Random, str, float], None]:
    def misfortune(world: World, luck: Random, name: str, at: float) -> None:
        node: Any = world.server if role == "aggregator" else world.devices[name]
        more = luck.randint(1, 20)

        def arm() -> None:
            world.tally[f"{role}'s disk to fail"] += 1
            node.disk.fail_in = more

        world.after(at, arm)

    return misfortune


def _fill(role: str) -> Callable[[World, Random, str, float], None]:
    def misfortune(world: World, luck: Random, name: str, at: float) -> None:
        node: Any = world.server if role == "aggregator" else world.devices[name]

        def full(is_full: bool) -> None:
            world.tally[f"{role}'s disk full"] += is_full
            node.disk.full = is_full

        world.after(at, lambda: full(True))
        world.after(at + luck.uniform(1, 30), lambda: full(False))

    return misfortune


def _clock(world: World, luck: Random, name: str, at: float) -> None:
    by = luck.choice([3600.0, 8 * 86400.0, -86400.0, 60.0])

    def jump() -> None:
        world.tally["clock jumped"] += 1
        world.clock_is_off += by

    world.after(at, jump)


def _restored(who: str) -> Callable[[World, Random, str, float], None]:
    def misfortune(world: World, luck: Random, name: str, at: float) -> None:
        name = who or name
        world.after(at, lambda: world.image(name))
        world.after(at + luck.uniform(1, 80), lambda: world.restore(name))

    return misfortune


def _cloned(world: World, luck: Random, name: str, at: float) -> None:
    world.after(at, lambda: world.clone(name))


def _leave(world: World, luck: Random, name: str, at: float) -> None:
    def leave() -> None:
        device = world.devices[name]
        if device.alive and device.up:
            world.tally["told to leave"] += 1
            device.take(Leave())

    world.after(at, leave)


def _may_not(world: World, luck: Random, name: str, at: float) -> None:
    def say(reason: str) -> None:
        world.tally["may not train"] += bool(reason)
        world.devices[name].reason = reason

    world.after(at, lambda: say("it is too hot"))
    world.after(at + luck.uniform(5, 90), lambda: say(""))


def _epoch(world: World, luck: Random, name: str, at: float) -> None:
    def begin() -> None:
        world.tally["new epoch"] += world.server.alive
        world.server.new_epoch()

    world.after(at, begin)


_MISFORTUNES: dict[str, Callable[[World, Random, str, float], None]] = {
    "cut": _cut,
    "partition": _partition,
    "device killed": _kill("device"),
    "aggregator killed": _kill("aggregator"),
    "device's disk fails": _fail("device"),
    "aggregator's disk fails": _fail("aggregator"),
    "device's disk is full": _fill("device"),
    "aggregator's disk is full": _fill("aggregator"),
    "clock jumps": _clock,
    "card restored": _restored(""),
    "card cloned": _cloned,
    "backup restored": _restored("server"),
    "leave": _leave,
    "epoch": _epoch,
    "may not train": _may_not,
}
