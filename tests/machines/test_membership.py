"""Fences, restored and cloned states: who speaks for whom."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines.network import Fleet
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic

from kellet import kernels
from kellet.sdk.algorithms import Scaffold
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import DeviceMachine
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.messages import (
    Busy,
    FromDevice,
    Hello,
    Reject,
    Train,
    Welcome,
)
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.store import Store
from kellet.sdk.transport.base import Connected, Received

PLAN = linear_loss(1)
ONE = 2**48
ALGORITHM = Scaffold(local_lr=0.1, batch_size=0, local_steps=2)
DATA = {"a": np.array([[1, 0]]), "b": np.array([[2, 3]]), "c": np.array([[0.5, -2]])}


def fleet_of(folder: Path, **how: Any) -> Fleet:
    options = {"rounds": 3, "deadline": 60.0, "quorum": 1} | how
    return Fleet(folder, quadratic(initial=1.0), DATA, ALGORITHM, **options).start()


def audit(c_i: int, epoch: int = 1) -> int:
    return kernels.linear_digest(np.array([c_i], np.int64), epoch)


# -- fences --------------------------------------------------------------------------------


def test_of_two_processes_with_one_id_the_older_is_fenced_off() -> None:
    lab = Lab(PLAN, Scaffold(), target=3)
    old = Puppet(lab, "a")
    new = Puppet(lab, "a", boot=b"new-boot", incarnation=2)
    answer = old.join()
    assert isinstance(answer, Reject)
    assert (answer.code, answer.boot, answer.nonce) == ("fenced", old.boot, old.nonce)
    assert old.hello().code == "fenced"
    header, body = old.body([-0.5])
    assert old.offer(header, body).code == "fenced"
    assert isinstance(new.join(), Train)
    assert new.send([-0.5]).counted
    assert lab.machine.members == 1


def test_a_fenced_process_stops_with_the_repair(folder: Path) -> None:
    fleet = fleet_of(folder)
    fleet.run(lambda: fleet.server.machine.round == 2)
    device = fleet.devices["a"]
    identity = device.store.identity
    hello = Hello(
        nonce=identity.nonce,
        boot=b"the-copy",
        incarnation=identity.incarnation + 1,
        seq=device.store.seq,
        pending=device.store.pending_uid(),
        epoch=device.store.epoch,
        audit=device.store.audit(),
    )
    fleet.server.take(Received(fleet.topics.req("a"), wire.pack(hello)))
    fleet.run(lambda: device.machine.fatal is not None)
    assert "another process uses the device id 'a'" in str(device.machine.fatal)
    assert "--state directory" in str(device.machine.fatal)
    assert device.machine.wake is None


def test_a_stranger_must_say_hello_first() -> None:
    lab = Lab(PLAN, Scaffold())
    a = Puppet(lab, "a", hello=False)
    assert a.join().code == "unknown"
    assert lab.machine.members == 0
    a.hello()
    assert isinstance(a.join(), Train)
    lab.start()  # sessions are not kept: everybody says hello again
    assert a.join().code == "unknown"
    assert isinstance(a.hello(), Welcome)
    assert isinstance(a.join(), Train)


def test_another_device_does_not_speak_for_this_one() -> None:
    """Case 33's half that is the protocol's: a topic names the device, the nonce must be its."""
    lab = Lab(PLAN, Scaffold(), target=3)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    header, body = a.body([-0.5])
    forged = Puppet(lab, "b", hello=False, nonce=a.nonce, boot=a.boot)
    assert forged.offer(header, body).code == "unknown"
    # b offers under its own identity an update that has the name of a's.
    assert b.deliver(header, body, nonce=b.nonce) is None
    assert "name is not its work's" in lab.reports("refused")[-1]["error"]
    assert lab.machine.control.integers() == [0]
    assert a.deliver(header, body).counted


# -- restored and cloned -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        {"incarnation": 1, "seq": 0, "epoch": 1, "audit": 0},  # a backup of before the update
        {"incarnation": 9, "seq": 0, "epoch": 1, "audit": 0},  # the same, started many times
        {"incarnation": 9, "seq": 0, "epoch": None, "audit": None},
        {"incarnation": 3, "seq": 1, "epoch": 1, "audit": 77},  # another control
        {"incarnation": 2, "seq": 1, "epoch": 1, "audit": audit(ONE)},  # started as often: a clone
        {"incarnation": 3, "seq": 1, "epoch": 2, "audit": 0},  # of an epoch still to come
    ],
)
def test_a_state_that_is_not_the_ledgers_is_sent_back(state: dict[str, Any]) -> None:
    lab = Lab(PLAN, Scaffold(), target=5)
    a = Puppet(lab, "a", incarnation=2)
    assert a.send([-0.5]).counted
    copy = Puppet(lab, "a", hello=False, nonce=a.nonce, boot=b"the-copy")
    answer = copy.hello(**state)
    assert isinstance(answer, Reject)
    assert (answer.code, answer.boot, answer.nonce) == ("restored", b"the-copy", a.nonce)
    # Nothing has happened yet: the message may be an old one.
    assert lab.member_states() == {"a": ["active"]}
    assert lab.machine.members == 1
    assert a.send([-9.0]).reason == "duplicate"  # and a still speaks for itself

    anew = Puppet(lab, "a", nonce=b"n" * 16, boot=b"the-copy")
    assert lab.member_states() == {"a": ["ghost", "active"]}
    assert lab.machine.members == 2
    assert lab.machine.control.integers() == [ONE]  # the ghost's control is part of C
    assert isinstance(anew.join(), Busy)  # this device was counted in this round
    assert a.join().code == "fenced"


def test_the_state_of_a_member_that_goes_on_is_welcome() -> None:
    lab = Lab(PLAN, Scaffold(), target=5)
    a = Puppet(lab, "a", incarnation=2)
    header, body = a.body([-0.5])
    receipt = a.deliver(header, body)
    for state in [
        {"incarnation": 2, "seq": 1, "epoch": 1, "audit": audit(ONE)},  # another connection
        # The receipt was lost: c_i is still the old one, and waits.
        {"incarnation": 3, "boot": b"reboot-1", "seq": 0, "pending": receipt.uid, "epoch": 1},
        {"incarnation": 4, "boot": b"reboot-2", "seq": 1, "epoch": 1, "audit": audit(ONE)},
    ]:
        answer = a.hello(**({"audit": 0} | state))
        assert isinstance(answer, Welcome), (state, answer)
        assert answer.audit == "same"
        assert answer.receipt == (receipt if state.get("pending") else None)
    assert lab.machine.members == 1


def test_an_old_hello_of_the_same_process_changes_nothing() -> None:
    lab = Lab(PLAN, Scaffold(), target=1)
    a = Puppet(lab)
    old = {"seq": 0, "epoch": 1, "audit": 0}
    for _ in range(3):
        assert a.send([-0.5]).counted
    answer = a.hello(**old)
    assert isinstance(answer, Welcome)
    assert answer.audit == "none"
    assert isinstance(a.join(), Train)
    assert lab.member_states() == {"a": ["active"]}


def test_an_old_hello_of_an_older_process_changes_nothing(folder: Path) -> None:
    """Even where the aggregator has been restarted, and does not remember whom it fenced."""
    lab = Lab(PLAN, Scaffold(), state=folder, target=1)
    Puppet(lab, "a", incarnation=1)
    now = Puppet(lab, "a", incarnation=2, boot=b"boot-two")
    assert now.send([-0.5]).counted
    lab.start()
    now.hello(seq=1, epoch=1, audit=audit(ONE))
    before = Puppet(lab, "a", hello=False)
    answer = before.hello()
    assert (answer.code, answer.boot) == ("restored", before.boot)
    assert isinstance(now.join(), Train)
    assert lab.member_states() == {"a": ["active"]}


def test_an_old_hello_of_a_membership_that_was_replaced_changes_nothing() -> None:
    """The same process, before and after it enrolled anew; nothing of it was ever counted."""
    lab = Lab(PLAN, Scaffold(), target=3)
    first = Puppet(lab, "a")
    anew = Puppet(lab, "a", nonce=b"n" * 16, boot=first.boot)
    assert lab.member_states() == {"a": ["dropped", "active"]}
    answer = first.hello()
    assert (answer.code, answer.nonce) == ("restored", first.nonce)
    assert isinstance(anew.join(), Train)
    assert lab.machine.members == 1


@pytest.mark.parametrize(
    ("state", "welcome"),
    [
        ({}, True),
        ({"seq": 4, "epoch": 1, "audit": 0}, True),  # a control of zero harms nobody
        ({"seq": 4, "epoch": 1, "audit": 12345}, False),  # counted in another ledger
        ({"seq": 4, "epoch": 7, "audit": 0}, False),
        ({"seq": 4, "epoch": 7, "audit": 12345}, False),
    ],
)
def test_an_installation_that_this_ledger_does_not_know(
    state: dict[str, Any], welcome: bool
) -> None:
    """The aggregator's state was lost, the devices have theirs: none brings a control along."""
    lab = Lab(PLAN, Scaffold())
    answer = Puppet(lab, "a", hello=False).hello(**state)
    assert isinstance(answer, Welcome) == welcome
    assert lab.machine.members == int(welcome)


def test_a_control_of_an_epoch_that_is_over_is_void() -> None:
    lab = Lab(PLAN, Scaffold())
    lab.machine.new_epoch(0.0)
    answer = Puppet(lab, "a", hello=False).hello(seq=4, epoch=1, audit=12345)
    assert isinstance(answer, Welcome)
    assert answer.epoch == 2


def test_a_device_whose_card_was_restored_enrols_anew(folder: Path) -> None:
    """The whole way: copy the card, be counted, put the copy back, go on. The gap stays 0."""
    fleet = fleet_of(folder)
    a = fleet.devices["a"]
    fleet.run(lambda: a.store.seq == 1)
    shutil.copytree(a.folder, folder / "backup")
    fleet.run(lambda: fleet.server.machine.round == 3)
    a.kill()
    fleet.books.freeze("a")
    shutil.rmtree(a.folder)
    shutil.copytree(folder / "backup", a.folder)
    ledger = fleet.server.ledger
    a.restart()
    fleet.run()
    fleet.let_pass(60)
    assert "enrolled_anew" in [kind for name, kind, _ in fleet.reports if name == "a"]
    states = [m.state for m in ledger.members() if m.device == "a"]
    assert states == ["ghost", "active"]
    assert fleet.server.machine.members == 4
    fleet.books.check(fleet.server.machine, ledger)


def test_a_cloned_card_fences_or_enrols_but_never_parts_the_sums(folder: Path) -> None:
    fleet = fleet_of(folder, rounds=5)
    a = fleet.devices["a"]
    fleet.run(lambda: a.store.seq == 1)
    # The clone is started beside the original, on the original's id.
    shutil.copytree(a.folder, folder / "clone")
    clone_store = Store("a", folder / "clone" / "device.db")
    clone = DeviceMachine(
        Topics("kellet"), clone_store, BlobCache(folder / "clone" / "plans"), boot=b"clone-01"
    )
    for effect in clone.step(Connected(None), fleet.now):
        if hasattr(effect, "payload") and effect.topic.endswith("req"):
            fleet.server.take(Received(effect.topic, effect.payload))
    fleet.run(lambda: a.machine.fatal is not None or fleet.server.machine.finished)
    assert a.machine.fatal is not None
    assert "another process" in str(a.machine.fatal)
    fleet.hold("the clone took over")


def test_a_hello_from_the_past_does_not_reach_the_gap(folder: Path) -> None:
    """Each hello that was ever said is said again at the end of every round."""
    fleet = fleet_of(folder, rounds=4)
    said: list[tuple[str, bytes]] = []
    publish = fleet.publish

    def listen(topic: str, payload: bytes, retain: bool) -> None:
        if topic.endswith("/req") and isinstance(wire.unpack(payload, FromDevice), Hello):
            said.append((topic, payload))
        publish(topic, payload, retain)

    fleet.publish = listen  # type: ignore[method-assign]
    for device in fleet.devices.values():
        fleet.after(2.0, device.cut)
        fleet.after(2.5, device.connect)
    for number in range(2, 5):
        fleet.run(lambda number=number: fleet.server.machine.round == number)
        for topic, payload in list(said):
            fleet.server.take(Received(topic, payload))
    fleet.run()
    fleet.let_pass(60)
    assert len(said) >= 6
    assert not [r for r in fleet.reports if r[1] == "enrolled_anew"]
    fleet.check_end()
