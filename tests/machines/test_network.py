"""Hundreds of fleets under networks that lose, repeat and reorder, and among processes that die.

Each seed is a fleet of three devices. Whatever happens to it, after every event C is the sum of
the committed controls; in the end every update was counted once or not at all, and model
and C are what an independent account makes of the bodies that the devices sent.
"""

from __future__ import annotations

import functools
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from machines.network import Fleet, Weather
from support.toy_plans import quadratic, softmax_regression

from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.device import Leave
from kellet.sdk.plan import GradientSession
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.messages import Round
from kellet.sdk.protocol.vectors import Codec
from kellet.sdk.variants import add_variants

SEEDS = 300
BLOCK = 25
LASTS = 240.0  # seconds of bad weather

DATA = {
    "a": np.array([[1, 0]]),
    "b": np.array([[2, 3], [1, 5]]),
    "c": np.array([[0.5, -2], [1, 1], [3, 0]]),
}
ALGORITHMS = [
    Scaffold(local_lr=0.1, batch_size=0, local_steps=2),
    Scaffold(local_lr=0.1, batch_size=1, local_steps=3, lr_decay=0.8, delta_c="f32"),
    Scaffold(local_lr=0.1, batch_size=2, local_steps=1, option="I"),
    FedAvg(local_lr=0.1, batch_size=0, local_steps=2),
    FedProx(local_lr=0.1, batch_size=1, mu=0.5),
    Scaffold(local_lr=0.1, batch_size=1, local_steps=3, control_damping=0.25),
    Scaffold(local_lr=0.1, batch_size=1, local_steps=3, delta_c="q8"),
    Scaffold(local_lr=0.1, batch_size=1, local_steps=3, delta_c="topk"),
    Scaffold(local_lr=0.1, batch_size=2, local_steps=1, option="I", delta_c="q8"),
]
UPLINKS: list[tuple[Codec, ...]] = [("f32",), ("q8",), ("topk",), ("f32", "q8", "topk")]
SCHEMES = [("f32/1",), ("w8.row/1", "f32/1")]
PLAN = quadratic(initial=1.0)
ROWS = add_variants(softmax_regression(2, 3, initial=0.5), ["w8.row/1"])


@pytest.fixture(scope="module")
def session() -> GradientSession:
    return PLAN.session()


def storm(folder: Path, session: GradientSession, seed: int, **config: Any) -> Fleet:
    """A fleet, and what will befall it: all of it decided by the seed."""
    luck = Random(f"storm {seed}")
    stale = luck.choice([3.0, 100.0])
    algorithm = luck.choice(ALGORITHMS)
    if luck.random() < 0.75:
        plan = ROWS
        config |= conditions(luck, algorithm)
    else:
        plan = PLAN
        config |= {"share": 0.5}
    config = {"rounds": 3} | lateness(Random(f"late {seed}")) | config
    fleet = Fleet(
        folder,
        plan,
        DATA,
        algorithm,
        session=session if plan is PLAN else None,
        seed=seed,
        weather=Weather(lost=0.2, twice=0.2, slowest=3.0, stale=stale),
        training=luck.uniform(0.5, 20),
        quorum=luck.choice([1, 2]),
        deadline=luck.choice([30.0, 120.0]),
        **config,
    )
    for node in fleet.nodes:
        for _ in range(luck.randrange(6)):
            fleet.after(luck.uniform(0, LASTS), node.cut)
        for _ in range(8):
            fleet.after(luck.uniform(0, LASTS), node.connect)
        for _ in range(luck.choice([0, 0, 1, 2])):
            dies = luck.uniform(0, LASTS)
            fleet.after(dies, node.kill)
            fleet.after(dies + luck.uniform(0, 20), node.restart_if_dead)
    if luck.random() < 0.2:
        fleet.after(luck.uniform(20, LASTS), fleet.server.new_epoch)
    for device in fleet.devices.values():
        if luck.random() < 0.2:
            begins = luck.uniform(0, LASTS / 2)
            fleet.after(begins, functools.partial(setattr, device, "reason", "it is too hot"))
            fleet.after(
                begins + luck.uniform(5, 90), functools.partial(setattr, device, "reason", "")
            )
    return fleet


def lateness(luck: Random) -> dict[str, Any]:
    """What becomes of late updates, and who is slow."""
    if luck.random() < 0.5:
        return {}
    slow = {
        name: luck.uniform(10, 60) for name in luck.sample(sorted(DATA), luck.choice([0, 1, 2]))
    }
    return {
        "late": "buffer",
        "buffer": luck.choice([0, 2, 2]),
        "max_stale": luck.choice([1, 2, 4]),
        "rounds": luck.choice([3, 6]),
        "training_of": slow,
    }


def conditions(luck: Random, algorithm: FedAvg) -> dict[str, Any]:
    """How vectors travel and weights are held, on both sides."""
    uplink = luck.choice(UPLINKS)
    derived = isinstance(algorithm, Scaffold) and algorithm.delta_c == "derived"
    return {
        "uplink": uplink,
        "share": 0.3,
        "feedback": not derived and uplink != ("f32",) and luck.random() < 0.5,
        "downlink": luck.choice(["f32", "q8"]),
        "schemes": luck.choice(SCHEMES),
        "schemes_of": {name: luck.choice(SCHEMES) for name in DATA},
        "codecs_of": {name: luck.choice(["f32", "q8", "topk"]) for name in DATA},
    }


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_every_update_is_counted_once_or_not_at_all(
    folder: Path, session: GradientSession, first: int
) -> None:
    for seed in range(first, first + BLOCK):
        here = folder / str(seed)
        here.mkdir()
        try:
            fleet = storm(here, session, seed).start()
            fleet.let_pass(LASTS)
            fleet.heal()
            fleet.check_end()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        # No message, however late, may cost a device its membership.
        assert not [r for r in fleet.reports if r[1] in ("enrolled_anew", "fatal")], seed


def test_devices_leave_in_the_middle_of_it(folder: Path, session: GradientSession) -> None:
    """C -= c_i and N -= 1 together and once, whatever is lost, repeated, or killed."""
    left = 0
    for seed in range(1000, 1030):
        here = folder / str(seed)
        here.mkdir()
        fleet = storm(here, session, seed, min_members=2, target=2)
        luck = Random(f"leave {seed}")
        leaver = fleet.devices[luck.choice(sorted(DATA))]

        def leave(leaver: Any = leaver) -> None:
            if leaver.alive:
                leaver.take(Leave())

        for _ in range(3):
            fleet.after(luck.uniform(5, LASTS), leave)
        fleet.start().let_pass(LASTS)
        fleet.heal()
        states = [m.state for m in fleet.server.ledger.members() if m.device == leaver.name]
        # Told again after it has left and was restarted, it leaves as the newcomer it is.
        assert set(states) <= {"left", "active"}, seed
        assert fleet.server.machine.members == 2 + states.count("active"), seed
        assert fleet.books.gap(fleet.server.machine) == 0, seed
        left += "left" in states
    assert left >= 10


def test_the_storms_are_storms(folder: Path, session: GradientSession) -> None:
    """The faults above do happen: refusals, abandoned rounds, restarts, lost work.

    And so do all the ways in which vectors travel and weights are held.
    """
    kinds: set[str] = set()
    reasons: set[str] = set()
    states: set[str] = set()
    ways: set[str] = set()
    for seed in range(30):
        here = folder / str(seed)
        here.mkdir()
        fleet = storm(here, session, seed).start()
        fleet.let_pass(LASTS)
        fleet.heal()
        kinds |= {kind for _, kind, _ in fleet.reports}
        reasons |= {d["reason"] for _, kind, d in fleet.reports if kind == "settled"}
        rounds = fleet.server.ledger.rounds()
        states |= {row.state for row in rounds}
        for row in rounds:
            message: Round = wire.unpack(row.announcement, Round)
            ways |= {*row.summary["schemes"], *row.summary["codecs"]}
            ways |= {f"model {message.model.codec}", f"delta_c {message.codecs.delta_c}"}
            ways |= {"feedback"} if message.codecs.feedback else set()
            ways |= {"mixed"} if len(row.summary["schemes"]) > 1 else set()
            ways |= {f"late {row.summary['staleness_max']}"} if row.summary.get("late") else set()
    assert {"counted", "settled", "epoch", "returned", "refused_update", "link_lost"} <= kinds
    assert {"counted", "late"} <= reasons
    assert {"closed", "abandoned"} <= states
    assert "declined" in kinds
    assert {"f32/1", "w8.row/1", "mixed", "f32", "q8", "topk", "feedback"} <= ways
    assert {"model f32", "model q8"} <= ways
    assert {"late 1", "late 2"} <= ways
    assert {f"delta_c {codec}" for codec in ("none", "derived", "f32", "q8", "topk")} <= ways
