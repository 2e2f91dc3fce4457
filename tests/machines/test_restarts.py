"""Kill -9 at every point of a round: of the aggregator, of a device, of both.

A point is an event (before or after what it causes is said) or a write to the disk (before or
after it). The files are copied as they lie, with their write-ahead logs, and the next process
opens the copy. Whatever the point, the fleet comes to the model of a run without faults.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines.network import Fleet, Killed
from support.toy_plans import quadratic

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import FleetError
from kellet.sdk.plan import GradientSession, Plan
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.messages import Round
from kellet.server import FleetConfig
from kellet.server.aggregator import AggregatorMachine
from kellet.server.blobs import Blobs
from kellet.server.ledger import Ledger
from kellet.server.uploads import Spool

PLAN = quadratic(initial=1.0)
DATA = {"a": np.array([[1, 0]]), "b": np.array([[2, 3], [1, 5]])}
DERIVED = Scaffold(local_lr=0.1, batch_size=1, local_steps=3)
EXPLICIT = Scaffold(local_lr=0.1, batch_size=1, local_steps=3, delta_c="f32")
FEDAVG = FedAvg(local_lr=0.1, batch_size=1)
# "written" and "silent" are where it matters; the other two are just before and after.
POINTS = [
    *[(DERIVED, place) for place in ("silent", "said", "write", "written")],
    *[(EXPLICIT, place) for place in ("silent", "written")],
    (FEDAVG, "silent"),
]


@pytest.fixture(scope="module")
def session() -> GradientSession:
    return PLAN.session()


def make(folder: Path, session: GradientSession, algorithm: FedAvg = DERIVED, **how: Any) -> Fleet:
    return Fleet(folder, PLAN, DATA, algorithm, session=session, rounds=2, **how)


def finish(fleet: Fleet) -> tuple[bytes, list[int], list[int]]:
    """Run to the end; the model's digest, C, and the rounds' counts."""
    fleet.start().run()
    fleet.let_pass(60)
    fleet.check_end()
    server, ledger = fleet.server.machine, fleet.server.ledger
    counts = [len(ledger.counted(row.round)) for row in ledger.rounds() if row.state == "closed"]
    return server.digest, server.control.integers(), counts


def points(fleet: Fleet, node: Callable[[Fleet], Any], place: str) -> range:
    """All the points of a run that has ended."""
    steps, writes = node(fleet).steps, node(fleet).writes
    return range(1, (writes if place in ("write", "written") else steps) + 1)


@pytest.mark.parametrize(("algorithm", "place"), POINTS)
def test_the_aggregator_dies_at_every_point(
    folder: Path, session: GradientSession, algorithm: FedAvg, place: str
) -> None:
    calm = make(folder / "calm", session, algorithm)
    wanted = finish(calm)
    assert wanted[2] == [2, 2]
    deaths = 0
    for point in points(calm, lambda fleet: fleet.server, place):
        fleet = make(folder / f"{point}", session, algorithm)
        fleet.server.die_at = (place, point)
        assert finish(fleet) == wanted, f"killed at {place} {point}"
        deaths += fleet.server.life
    assert deaths >= 10  # it did die, nearly everywhere


@pytest.mark.parametrize(("algorithm", "place"), POINTS)
def test_a_device_dies_at_every_point(
    folder: Path, session: GradientSession, algorithm: FedAvg, place: str
) -> None:
    calm = make(folder / "calm", session, algorithm)
    wanted = finish(calm)
    deaths = 0
    for point in points(calm, lambda fleet: fleet.devices["b"], place):
        fleet = make(folder / f"{point}", session, algorithm)
        fleet.devices["b"].die_at = (place, point)
        assert finish(fleet) == wanted, f"killed at {place} {point}"
        deaths += fleet.devices["b"].life
        assert [c for *_, c, _ in fleet.devices["b"].store.receipts()] == [True, True]
    assert deaths >= 5


def test_aggregator_and_device_die_together(folder: Path, session: GradientSession) -> None:
    calm = make(folder / "calm", session)
    wanted = finish(calm)
    for point in points(calm, lambda fleet: fleet.devices["b"], "silent"):
        fleet = make(folder / f"{point}", session)
        fleet.devices["b"].die_at = ("silent", point)
        fleet.server.die_at = ("silent", 2 * point)
        assert finish(fleet) == wanted, f"killed at {point}"


@pytest.mark.parametrize("every", [5, 7, 9])
def test_the_aggregator_dies_again_and_again(
    folder: Path, session: GradientSession, every: int
) -> None:
    """Every few events, in each of its lives."""
    wanted = finish(make(folder / "calm", session))
    fleet = make(folder / "killed", session).start()
    last = 0

    def die() -> None:
        nonlocal last
        if fleet.server.alive and fleet.server.steps - last >= every:
            last = fleet.server.steps
            fleet.server.kill()
            fleet.after(0.5, fleet.server.restart_if_dead)
        fleet.after(0.05, die)

    die()
    fleet.run()
    assert fleet.server.life >= 3
    fleet.let_pass(60)
    fleet.check_end()
    assert fleet.server.machine.digest == wanted[0]


def test_the_aggregator_dies_while_it_founds_the_fleet(folder: Path) -> None:
    """Each write of the first start, and the second start finds a fleet or founds it."""

    def start(kill_at: int | None) -> bytes:
        ledger, blobs = Ledger(folder / f"{at}" / "ledger.db"), Blobs(folder / f"{at}" / "blobs")
        writes = 0

        def dying(write: Any) -> Any:
            def step(*args: Any) -> Any:
                nonlocal writes
                writes += 1
                if writes == kill_at:
                    raise Killed
                return write(*args)

            return step

        blobs.put, ledger.found = dying(blobs.put), dying(ledger.found)  # type: ignore[method-assign]
        spool = Spool(folder / f"{at}" / "spool")
        machine = AggregatorMachine(
            FleetConfig(), PLAN, ledger=ledger, blobs=blobs, spool=spool, clock=lambda: 0.0
        )
        return machine.digest

    for at in (1, 2, 3):
        with pytest.raises(Killed):
            start(at)
        assert start(None) == hashlib.sha256(PLAN.initial().tobytes()).digest()


def test_a_round_that_was_opened_but_never_said(folder: Path, session: GradientSession) -> None:
    """The announcement is in the ledger, and the process died before it was published."""
    wanted = finish(make(folder / "calm", session))
    fleet = make(folder / "killed", session)
    fleet.server.die_at = ("open_round", 1)
    fleet.start().run(lambda: fleet.server.life == 1)
    written = fleet.server.ledger.current_round()
    assert written is not None
    assert fleet.retained.get(fleet.topics.round) != written.announcement
    said: list[bytes] = []
    fleet.run(lambda: said.append(fleet.retained[fleet.topics.round]) or fleet.over)  # type: ignore[func-returns-value]
    assert written.announcement in said
    assert fleet.server.ledger.rounds()[0].announcement == written.announcement
    fleet.let_pass(60)
    fleet.check_end()
    assert fleet.server.machine.digest == wanted[0]


@pytest.mark.parametrize("write", ["keep", "write_update", "close_round", "retain", "write_member"])
def test_the_aggregator_dies_right_after(
    folder: Path, session: GradientSession, write: str
) -> None:
    """The body is spooled; the row is written; the round is closed: and nobody was told."""
    wanted = finish(make(folder / "calm", session))
    fleet = make(folder / "killed", session)
    fleet.server.die_at = (write, 1)
    assert finish(fleet) == wanted
    assert fleet.server.life == 1


@pytest.mark.parametrize("write", ["save_pending", "settle", "new_epoch"])
def test_a_device_dies_right_after(folder: Path, session: GradientSession, write: str) -> None:
    wanted = finish(make(folder / "calm", session))
    fleet = make(folder / "killed", session)
    fleet.devices["b"].die_at = (write, 1)
    assert finish(fleet) == wanted
    assert fleet.devices["b"].life == 1


def test_an_operator_changes_the_algorithm_between_two_processes(
    folder: Path, session: GradientSession
) -> None:
    """SCAFFOLD's controls outlive rounds of FedAvg, on both sides, and are used again."""
    fleet = Fleet(folder, PLAN, DATA, DERIVED, session=session, rounds=6).start()
    for round_, algorithm in ((3, FEDAVG), (5, EXPLICIT)):
        fleet.run(lambda round_=round_: fleet.server.machine.round == round_)  # type: ignore[misc]
        before = fleet.server.machine.control.integers()
        fleet.server.kill()
        fleet.config = dataclasses.replace(fleet.config, algorithm=algorithm)
        fleet.server.restart()
        assert fleet.server.machine.control.integers() == before
    fleet.run()
    fleet.let_pass(60)
    fleet.check_end()
    names = [
        wire.unpack(row.announcement, Round).algorithm["name"]
        for row in fleet.server.ledger.rounds()
    ]
    # The round that was open at the change is ended as it was announced.
    assert names == ["scaffold"] * 3 + ["fedavg"] * 2 + ["scaffold"]


def test_the_state_of_another_plan_is_refused(folder: Path) -> None:
    def start(plan: Plan) -> AggregatorMachine:
        return AggregatorMachine(
            FleetConfig(),
            plan,
            ledger=Ledger(folder / "ledger.db"),
            blobs=Blobs(folder / "blobs"),
            spool=Spool(folder / "spool"),
            clock=lambda: 0.0,
        )

    start(PLAN)
    with pytest.raises(FleetError, match="belongs to plan"):
        start(quadratic(initial=2.0))
    start(PLAN)
    for blob in (folder / "blobs").iterdir():
        if blob.name != PLAN.hex_id:
            blob.unlink()
    with pytest.raises(FleetError, match="is not in the state directory"):
        start(PLAN)
