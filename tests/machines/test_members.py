"""Newcomers, silence, leaving and epochs: who is in N, whose control is in C."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from algorithms.local import control
from machines.network import Fleet, Weather
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.protocol.messages import (
    NO_BASE,
    Reject,
    Welcome,
)
from kellet.sdk.transport.base import Received
from kellet.server.aggregator import RoundClosed

PLAN = linear_loss(1)
ONE = 2**48
ALGORITHM = Scaffold(local_lr=0.1, batch_size=0, local_steps=2)
DATA = {"a": np.array([[1, 0]]), "b": np.array([[2, 3]]), "c": np.array([[0.5, -2]])}


def fleet_of(folder: Path, **how: Any) -> Fleet:
    options = {"rounds": 3, "deadline": 60.0, "quorum": 1} | how
    return Fleet(folder, quadratic(initial=1.0), DATA, ALGORITHM, **options).start()


# -- newcomers, silence -------------------------------------------------------------------------


def test_a_newcomer_changes_n_alone_from_the_next_announcement() -> None:
    lab = Lab(PLAN, Scaffold(), target=1)
    a = Puppet(lab, "a")
    a.send([-1.0])  # C = 2
    Puppet(lab, "b")
    Puppet(lab, "c")
    assert lab.round.members == 1
    assert lab.machine.control.integers() == [2 * ONE]
    a.send([0.0])  # c_a = 2: delta_c = -2
    assert lab.round.members == 3


def test_a_member_that_never_was_counted_is_dropped_after_its_time() -> None:
    lab = Lab(PLAN, Scaffold(), target=1, member_ttl=100.0, max_silent=1.0)
    active, counted, silent = (Puppet(lab, name) for name in ("active", "counted", "silent"))
    counted.send([-0.5])  # once, and never again
    assert lab.round.members == 3
    lab.age = 99.0
    active.send([0.0])
    assert lab.round.members == 3
    lab.age = 101.0
    (before,) = lab.machine.control.integers()
    active.send([0.0])  # counts -c_a; the member that goes takes nothing along
    c_a = float(np.float32(before / (3 * ONE)))
    assert lab.machine.control.integers() == [before + round(-c_a * ONE)]
    assert lab.round.members == 2
    # Who was counted is never dropped: its control is in C.
    assert lab.member_states() == {
        "active": ["active"],
        "counted": ["active"],
        "silent": ["dropped"],
    }
    lab.age = 1e9
    active.send([0.0])
    assert lab.round.members == 2

    # Who was dropped may come back, as the member it was.
    assert silent.join().code == "unknown"
    assert isinstance(silent.hello(epoch=1, audit=0), Welcome)
    assert lab.machine.members == 3
    assert silent.send([-0.5]).counted


def test_too_many_silent_members_begin_an_epoch_without_them() -> None:
    """A control that nobody moves any more biases all others: C starts again at zero."""
    lab = Lab(PLAN, Scaffold(), target=1, member_ttl=100.0, max_silent=0.5)
    a, b, c = (Puppet(lab, name) for name in "abc")
    a.send([-0.5])
    b.send([-0.5])
    c.send([-0.5])
    lab.age = 101.0
    a.join()  # heard of
    b.join()
    lab.age = 150.0
    a.send([0.0])  # c alone is silent: a third
    assert (lab.machine.epoch, lab.round.members) == (1, 3)
    lab.age = 210.0
    a.send([0.0])  # b too
    assert lab.reports("silent") == [{"devices": ["b", "c"], "members": 3}]
    assert (lab.machine.epoch, lab.round.epoch, lab.round.members) == (2, 2, 1)
    assert lab.machine.control.integers() == [0]
    assert lab.member_states() == {"a": ["active"], "b": ["dropped"], "c": ["dropped"]}


def test_silence_matters_to_no_algorithm_without_controls() -> None:
    lab = Lab(PLAN, FedAvg(), target=1, member_ttl=100.0)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.send([-0.5])
    b.send([-0.5])
    lab.age = 1000.0
    a.send([0.0])
    assert lab.machine.epoch == 1


def test_settings_that_changed_over_a_restart_are_named() -> None:
    lab = Lab(PLAN, Scaffold(local_lr=0.5), target=1, seed=1)
    Puppet(lab, "a").send([-0.5])
    lab.start()
    assert lab.reports("settings_changed") == []
    lab.start(algorithm=FedAvg(local_lr=0.25), seed=2)
    (facts,) = lab.reports("settings_changed")
    assert facts["changed"]["local_lr"] == [0.5, 0.25]
    assert facts["changed"]["name"] == ["scaffold", "fedavg"]
    assert facts["changed"]["seed"] == [1, 2]
    assert facts["changed"]["option"] == ["II", None]


def test_a_dropped_member_in_the_middle_of_an_upload_is_not_counted() -> None:
    lab = Lab(PLAN, Scaffold(), target=2, quorum=1, deadline=60, member_ttl=100.0)
    quick, slow = Puppet(lab, "quick"), Puppet(lab, "slow")
    lab.age = 200.0
    quick.send([-0.5])
    lab.wait(60)  # the next round: slow is dropped
    assert lab.member_states()["slow"] == ["dropped"]
    header, body = slow.body([-7.0])
    assert slow.offer(header, body).code == "unknown"
    assert lab.machine.control.integers() == [ONE]


# -- leaving ---------------------------------------------------------------------------------


def test_a_leave_takes_back_exactly_what_was_counted() -> None:
    lab = Lab(PLAN, Scaffold(), target=2)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.send([-0.5])  # c_a = 1
    b.send([-1.0])  # c_b = 2
    assert lab.machine.control.integers() == [3 * ONE]
    header, body = a.body(
        None, kind="leave", base=NO_BASE, round=0, codec="none", c_i=control([1.0])
    )
    receipt = a.deliver(header, body)
    assert receipt.counted
    assert lab.machine.control.integers() == [2 * ONE]
    assert lab.machine.members == 1
    assert a.offer(header, body).code == "unknown"
    assert a.hello(pending=receipt.uid, seq=1).receipt == receipt
    assert lab.machine.control.integers() == [2 * ONE]
    # It is out: whatever it says next counts for nothing.
    other, body = a.body([-9.0], seq=3)
    assert isinstance(a.offer(other, body), Reject)
    lab.start()
    assert lab.machine.control.integers() == [2 * ONE]
    assert lab.machine.members == 1


def test_a_leave_that_takes_more_than_was_counted_is_refused() -> None:
    """Only the device knows its c_i; the ledger knows its audit."""
    lab = Lab(PLAN, Scaffold(), target=2)
    a = Puppet(lab)
    a.send([-0.5])
    for wrong in ([2.0], [0.0], [-1.0]):
        header, body = a.body(
            None, kind="leave", base=NO_BASE, round=0, codec="none", c_i=control(wrong)
        )
        receipt = a.deliver(header, body)
        a.seq = header.seq
        assert (receipt.counted, receipt.reason) == (False, "inconsistent")
        assert lab.machine.control.integers() == [ONE]
        assert lab.machine.members == 1
    header, body = a.body(None, kind="leave", base=NO_BASE, round=0, codec="none")  # "it is zero"
    assert a.deliver(header, body).reason == "inconsistent"
    assert lab.machine.control.integers() == [ONE]


def test_who_has_left_comes_back_as_a_newcomer() -> None:
    lab = Lab(PLAN, Scaffold(), target=2)
    a = Puppet(lab)
    a.send([-0.5])
    header, body = a.body(
        None, kind="leave", base=NO_BASE, round=0, codec="none", c_i=control([1.0])
    )
    assert a.deliver(header, body).counted
    assert lab.machine.members == 0
    again = a.hello(seq=2, epoch=1, audit=0, incarnation=2, boot=b"new-boot")
    assert again.code == "restored"
    assert lab.machine.members == 0  # not a ghost: it took its control along
    Puppet(lab, "a", nonce=b"n" * 16)
    assert lab.machine.members == 1
    assert lab.machine.control.integers() == [0]


# -- epochs -----------------------------------------------------------------------------------


def test_a_new_epoch_begins_at_zero_and_refuses_the_old() -> None:
    lab = Lab(PLAN, Scaffold(), target=2)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.send([-0.5])
    old = b.body([-7.0])
    grant = b.offer(*old)
    model = lab.machine.digest
    lab.effects += lab.machine.new_epoch(lab.now)
    assert lab.machine.epoch == 2
    assert lab.machine.control.integers() == [0]
    assert lab.machine.digest == model
    assert [row.state for row in lab.ledger.rounds()] == ["abandoned", "open"]
    abandoned = lab.ledger.rounds()[0].summary
    assert (abandoned["state"], abandoned["counted"]) == ("abandoned", ["a"])
    assert abandoned["model"] == model.hex()
    assert RoundClosed(1, abandoned) in lab.effects
    assert lab.round.epoch == 2
    assert b.part(grant.uid, 0, old[1]) == []
    assert b.offer(*old).reason == "late"
    # One that claims the new round with the old epoch in its header:
    b.seq = 1
    assert b.send([-7.0], epoch=1).reason == "epoch"
    assert lab.machine.control.integers() == [0]
    b.seq = 2
    assert b.send([-0.5]).counted
    assert lab.machine.control.integers() == [ONE]
    lab.start()
    assert (lab.machine.epoch, lab.machine.control.integers()) == (2, [ONE])


def test_a_new_epoch_lets_the_ghosts_go() -> None:
    lab = Lab(PLAN, Scaffold(), target=5)
    Puppet(lab, "a").send([-0.5])
    Puppet(lab, "a", nonce=b"n" * 16, boot=b"boot-two")
    assert lab.machine.members == 2
    lab.effects += lab.machine.new_epoch(lab.now)
    assert lab.machine.members == 1
    assert lab.member_states() == {"a": ["dropped", "active"]}


def test_devices_set_their_controls_to_zero_when_they_see_it(folder: Path) -> None:
    fleet = fleet_of(folder, rounds=5)
    fleet.run(lambda: fleet.server.machine.round == 3)
    assert all(d.store.control(1)[0] != 0 for d in fleet.devices.values())
    fleet.devices["c"].cut()  # it will see it later
    fleet.server.new_epoch()
    fleet.run(lambda: fleet.server.machine.round == 5)
    assert fleet.devices["c"].store.epoch == 1
    fleet.devices["c"].connect()
    fleet.run()
    fleet.let_pass(60)
    assert [d.store.epoch for d in fleet.devices.values()] == [2, 2, 2]
    fleet.check_end()


def test_there_is_no_way_back_to_an_older_epoch(folder: Path) -> None:
    """Old announcements and old welcomes come again: c_i stays what the ledger counted."""
    fleet = fleet_of(folder, rounds=6, weather=Weather(slowest=0.2))
    heard: list[tuple[str, bytes]] = []
    publish = fleet.publish

    def listen(topic: str, payload: bytes, retain: bool) -> None:
        if topic == fleet.topics.round or topic.endswith("/ctl"):
            heard.append((topic, payload))
        publish(topic, payload, retain)

    fleet.publish = listen  # type: ignore[method-assign]
    fleet.run(lambda: fleet.server.machine.round == 3)
    fleet.server.new_epoch()
    fleet.run(lambda: fleet.server.machine.round == 5)
    epochs = {name: device.store.epoch for name, device in fleet.devices.items()}
    assert set(epochs.values()) == {2}
    for device in fleet.devices.values():
        device.cut()
        device.connect()
        for topic, payload in list(heard):
            if device.hears(topic):
                device.take(Received(topic, payload))  # the invariant is held after each
    assert {device.store.epoch for device in fleet.devices.values()} == {2}
    fleet.heal()
    fleet.check_end()


def test_an_aggregator_restored_from_a_backup_sends_its_devices_back(folder: Path) -> None:
    """The ledger has forgotten what the devices know: they enrol anew, and the sums agree."""
    fleet = fleet_of(folder, rounds=6)
    fleet.run(lambda: fleet.server.machine.round == 2)
    fleet.server.kill()
    shutil.copytree(fleet.server.folder, folder / "backup")
    then = fleet.books.copy()
    fleet.server.restart()
    fleet.run(lambda: fleet.server.machine.round == 4)
    fleet.server.kill()
    shutil.rmtree(fleet.server.folder)
    shutil.copytree(folder / "backup", fleet.server.folder)
    fleet.books.rewind(then)
    fleet.server.restart()
    fleet.run()
    fleet.let_pass(60)
    anew = {name for name, kind, _ in fleet.reports if kind == "enrolled_anew"}
    assert anew == {"a", "b", "c"}
    states = [m.state for m in fleet.server.ledger.members()]
    assert sorted(states) == ["active"] * 3 + ["ghost"] * 3


@pytest.mark.parametrize(("ttl", "often"), [(7 * 86400.0, 60.0), (500.0, 5.0)])
def test_a_hello_that_says_nothing_new_is_written_now_and_then(ttl: float, often: float) -> None:
    lab = Lab(linear_loss(1), Scaffold(), min_members=2, member_ttl=ttl)
    a = Puppet(lab)

    def seen() -> float:
        (member,) = lab.ledger.members()
        return member.seen

    for lab.age, written in [
        (0.9 * often, 0.0),
        (often, often),
        (1.9 * often, often),
        (0.5 * often, 0.5 * often),  # the clock was put back
    ]:
        assert isinstance(a.hello(), Welcome)
        assert seen() == written
    lab.age = 0.6 * often
    a.incarnation, a.boot = 2, b"new-boot"
    assert isinstance(a.hello(), Welcome)
    assert seen() == lab.age


def test_a_hello_that_is_not_written_counts_as_heard() -> None:
    lab = Lab(linear_loss(1), Scaffold(), min_members=2, member_ttl=500.0)
    a = Puppet(lab)
    lab.age = 4.0
    a.hello()
    lab.age = 502.0
    Puppet(lab, "b")  # a round may begin: those silent for 500 s are dropped, a is not
    assert lab.member_states() == {"a": ["active"], "b": ["active"]}
    assert lab.machine.members == 2
