"""A personal model is trained once for an announcement, whatever dies in between."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from machines.personal import PersonalFleet, PersonalNode
from support.toy_plans import quadratic

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.personal import Ditto
from kellet.sdk.shelf import Shelf, StoredPersonal

# loss (w - 1)^2 from 0. The fleet: w = 1/4, 7/16. Ditto at 1/4 with lambda 1/2, one step a round:
# v = 1/2, around x = 0; then 1/2 - 1/4 (2 (1/2 - 1) + 1/2 (1/2 - 1/4)) = 23/32.
PLAN = quadratic()
ROWS = {"a": np.array([[2.0, 1.0]])}
FLEET = FedAvg(local_lr=0.125, local_steps=1)
DITTO = Ditto(0.5, steps=1, local_lr=0.25)
AFTER = [0.5, 0.71875]


def fleet(folder: Path) -> PersonalFleet:
    made = PersonalFleet(folder, PLAN, ROWS, FLEET, rounds=2, personal=DITTO)
    assert isinstance(made, PersonalFleet)
    return made


def node(made: PersonalFleet) -> PersonalNode:
    found = made.devices["a"]
    assert isinstance(found, PersonalNode)
    return found


def test_undisturbed(tmp_path: Path) -> None:
    made = fleet(tmp_path)
    made.start().run()
    assert node(made).personal() == AFTER[1]


@pytest.mark.parametrize("where", ["save", "save_pending", "settle"])
def test_killed_after_a_write_it_goes_on_from_there(where: str, tmp_path: Path) -> None:
    """After ``save`` v is on the disk and no update is: round 1 is trained again, v is not."""
    made = fleet(tmp_path)
    device = node(made)
    device.die_at = (where, 1)
    made.start().run(until=lambda: not device.alive)
    device.restart()
    assert device.personal() == AFTER[0]
    made.run()
    assert device.life == 1
    assert device.personal() == AFTER[1]
    assert made.server.machine.model.tolist() == [0.4375]


@pytest.mark.parametrize("count", range(1, 14))
def test_killed_before_any_write(count: int, tmp_path: Path) -> None:
    made = fleet(tmp_path)
    device = node(made)
    device.die_at = ("write", count)
    made.start().run()
    made.let_pass(10)
    assert device.personal() == AFTER[1]
    assert made.server.machine.model.tolist() == [0.4375]


def test_enrolled_anew_the_round_is_trained_again_and_v_is_not(tmp_path: Path) -> None:
    """A restored device forgets that it has trained; the announcement is still open."""
    made = fleet(tmp_path)
    device = node(made)
    device.die_at = ("save_pending", 1)
    made.start().run(until=lambda: not device.alive)
    device.restart()
    device.store.enrol_anew()
    made.run(until=lambda: made.server.machine.round > 1 or made.over)
    assert device.personal() in AFTER
    made.run()
    assert device.personal() == AFTER[1]


def test_without_the_note_it_would_be_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1/2 - 1/4 (-1 + 1/4) = 11/16; then 11/16 - 1/4 (-5/8 + 7/32) = 101/128."""
    real = Shelf.find

    def forgetful(self: Shelf, plan: bytes) -> StoredPersonal | None:
        found = real(self, plan)
        return found and dataclasses.replace(found, base=b"")

    monkeypatch.setattr(Shelf, "find", forgetful)
    made = fleet(tmp_path)
    node(made).die_at = ("save", 1)
    made.start().run()
    assert node(made).personal() == 101 / 128
