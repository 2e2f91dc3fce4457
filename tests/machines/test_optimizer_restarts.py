"""Moments of the server's optimiser through kills, abandoned rounds and changed settings.

Case 29: an aggregator that starts again has the model, c, the round and the moments as they were.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines.network import Fleet
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.plan import GradientSession
from kellet.server.algorithms import FedAdagrad, FedAdam, FedAvgM, FedYogi
from kellet.server.optimizers import ServerOptimizer

PLAN = quadratic(initial=1.0)
DATA = {"a": np.array([[1, 0]]), "b": np.array([[2, 3], [1, 5]])}
SCAFFOLD = Scaffold(local_lr=0.1, batch_size=1, local_steps=3)
ALL = [FedAvgM(), FedAdagrad(), FedAdam(), FedYogi()]


@pytest.fixture(scope="module")
def session() -> GradientSession:
    made: GradientSession = PLAN.session()
    return made


def finish(folder: Path, session: GradientSession, optimizer: Any, **die: Any) -> tuple[Fleet, Any]:
    """Three rounds with a death of the aggregator; the fleet, and all that must be the same."""
    fleet = Fleet(folder, PLAN, DATA, SCAFFOLD, session=session, server_optimizer=optimizer)
    fleet.server.die_at = die.get("at")
    fleet.start().run()
    fleet.let_pass(60)
    fleet.check_end()
    server, ledger = fleet.server.machine, fleet.server.ledger
    norms = [row.summary["step_norm"] for row in ledger.rounds()]
    return fleet, (server.digest, server.control.integers(), ledger.moments(), norms)


@pytest.mark.parametrize(
    ("optimizer", "place"),
    [(FedAdam(), "written"), (FedAdam(), "write"), (FedYogi(), "silent"), (FedAvgM(), "written")],
    ids=lambda value: getattr(value, "name", value),
)
def test_case_29_the_aggregator_dies_at_every_point(
    folder: Path, session: GradientSession, optimizer: ServerOptimizer, place: str
) -> None:
    calm, wanted = finish(folder / "calm", session, optimizer)
    assert len(wanted[3]) == 3
    assert all(norm > 0 for norm in wanted[3])
    server = calm.server
    deaths = 0
    for point in range(1, (server.steps if place == "silent" else server.writes) + 1):
        fleet, got = finish(folder / f"{point}", session, optimizer, at=(place, point))
        assert got == wanted, f"killed at {place} {point}"
        deaths += fleet.server.life
    assert deaths >= 10


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)
def test_case_29_all_is_as_it_was_after_a_restart(folder: Path, optimizer: ServerOptimizer) -> None:
    """Killed after two rounds and half of the third; against a process that lived on."""
    labs = [
        Lab(
            linear_loss(2),
            FedAvg(),
            state=folder / name,
            part_size=1024,
            server_optimizer=optimizer,
        )
        for name in ("lives", "dies")
    ]
    for lab in labs:
        devices = [Puppet(lab, name) for name in "ab"]
        for change in ([3.0, -1.0], [0.5, 0.25]):
            for device in devices:
                device.send(change)
        devices[0].send([1.0, 2.0])
    lives, dies = labs
    model, moments, round_ = dies.machine.model.copy(), dies.ledger.moments(), dies.round
    dies.start()
    assert np.array_equal(dies.machine.model, model)
    assert dies.ledger.moments() == moments
    assert dies.round == round_
    for lab in labs:
        last = Puppet(lab, "b", seq=2, hello=False)
        last.hello(seq=2)
        last.send([-1.0, 0.5])
    assert dies.machine.round == 4
    assert dies.machine.digest == lives.machine.digest
    assert dies.ledger.moments() == lives.ledger.moments() != moments


@pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)
def test_an_abandoned_round_moves_no_moment(optimizer: ServerOptimizer) -> None:
    algorithm = Scaffold(local_lr=0.1)
    lab = Lab(
        linear_loss(2), algorithm, target=2, quorum=2, deadline=60, server_optimizer=optimizer
    )
    devices = [Puppet(lab, name) for name in "ab"]
    for device in devices:
        device.send([1.0, -2.0], rate_sum=0.5)
    moments, digest = lab.ledger.moments(), lab.machine.digest
    devices[0].send([5.0, 5.0], rate_sum=0.5)
    control = lab.machine.control.integers()
    lab.wait(61)
    states = [(row.state, row.summary.get("step_norm")) for row in lab.ledger.rounds()]
    assert [state for state, _ in states] == ["closed", "abandoned", "open"]
    assert states[0][1]
    assert states[1][1] is None
    assert lab.ledger.moments() == moments
    assert lab.machine.digest == digest
    assert lab.machine.control.integers() == control  # the update that was counted stays in C
    # A control epoch abandons a round as well; the moments are the model's, not the controls'.
    lab.machine.new_epoch(lab.now)
    assert lab.ledger.moments() == moments


def test_other_hyperparameters_go_on_from_the_same_moments() -> None:
    """beta .5: m = 3, then .5*3 + 1 = 2.5, which is taken at the rate that is now asked for."""
    lab = Lab(
        linear_loss(1),
        FedAvg(),
        target=1,
        server_optimizer=FedAvgM(server_lr=1.0, server_momentum=0.5),
    )
    device = Puppet(lab)
    device.send([3.0])
    assert lab.machine.model.tolist() == [3.0]
    lab.start(server_optimizer=FedAvgM(server_lr=0.5, server_momentum=0.5))
    assert lab.reports("settings_changed")[-1] == {"changed": {"server_lr": [1.0, 0.5]}}
    device.hello(seq=1)
    # The round that was open at the change ends as it was announced: .5*3 + 1 at rate 1.
    device.send([1.0])
    assert lab.machine.model.tolist() == [5.5]
    device.send([0.75])  # .5*2.5 + .75 = 2, at rate .5
    assert lab.machine.model.tolist() == [6.5]
    assert [row.summary.get("step_norm") for row in lab.ledger.rounds()] == [3.0, 2.5, 1.0, None]


@pytest.mark.parametrize("between", [FedAvgM(server_momentum=0.5), None])
def test_another_optimizer_begins_anew(between: ServerOptimizer | None) -> None:
    adam = FedAdam()
    lab = Lab(linear_loss(1), FedAvg(), target=1, server_optimizer=adam)
    device = Puppet(lab)
    device.send([3.0])
    lab.start(server_optimizer=between)
    changed = lab.reports("settings_changed")[-1]["changed"]
    assert changed["server_optimizer"] == ["adam", between.name if between else "none"]
    assert changed["server_lr"] == [0.1, 1.0]
    device.hello(seq=1)
    device.send([1.0])  # still of Adam's round
    name, _ = lab.ledger.moments() or ("", b"")
    assert name == "adam"
    before = float(lab.machine.model[0])
    device.send([2.0])
    assert lab.machine.model[0] == pytest.approx(before + 2.0, rel=1e-6)  # and no momentum yet
    kept = lab.ledger.moments()
    if between is None:
        assert kept is None
    else:
        assert kept == ("avgm", np.array([2.0], "<f8").tobytes())
    # Back at the first, whose moments of long ago are gone.
    lab.start(server_optimizer=adam)
    device.hello(seq=3)
    device.send([0.0])
    device.send([2.0])
    _, raw = lab.ledger.moments() or ("", b"")
    m, v = np.frombuffer(raw, "<f8")
    assert (m, v) == pytest.approx(((1 - 0.9) * 2, 0.99e-6 + 0.01 * 4), rel=1e-12)


def test_the_announcement_names_the_optimizer_for_whoever_looks() -> None:
    lab = Lab(linear_loss(1), FedAvg(), server_optimizer=FedYogi(tau=0.01))
    Puppet(lab)
    assert lab.round.optimizing == FedYogi(tau=0.01).wire()
    plain = Lab(linear_loss(1), FedAvg())
    Puppet(plain)
    assert plain.round.optimizing is None
    assert b"optimizer" not in plain.announcement  # the bytes that it always had


def test_a_ledger_of_an_earlier_version_opens(folder: Path) -> None:
    """It has no table of moments; its next round begins them."""
    lab = Lab(linear_loss(1), FedAvg(), target=1, state=folder, part_size=1024)
    device = Puppet(lab)
    device.send([1.0])
    lab.ledger._db._db.execute("drop table moments")
    lab.ledger.close()
    again = Lab(linear_loss(1), FedAvg(), target=1, state=folder, part_size=1024)
    again.start(server_optimizer=dataclasses.replace(FedAvgM(), server_momentum=0.5))
    device.lab = again
    device.hello(seq=1)
    for change in (2.0, 2.0, 2.0):
        device.send([change])
    # 1, then the plain round that was open, then 2 and .5*2 + 2.
    assert again.machine.model.tolist() == [8.0]


def test_a_late_update_moves_the_moments_by_its_damped_share() -> None:
    """m = 3; then b, a round late, weighs 724/1024: m = .5*3 + 2*724/1024 = 2.9140625."""
    lab = Lab(
        linear_loss(1),
        FedAvg(),
        target=1,
        late="buffer",
        server_optimizer=FedAvgM(server_momentum=0.5),
    )
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    late = b.body([2.0])
    a.send([3.0])
    assert b.deliver(*late).counted
    assert lab.machine.model.tolist() == [5.9140625]
    assert lab.ledger.moments() == ("avgm", np.array([2.9140625], "<f8").tobytes())
