"""Updates on their way in: admission, leases, bitmaps, and bodies that are not what they claim."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines.network import Fleet, Weather
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import StorageError
from kellet.sdk.protocol.messages import Ack, Busy, Grant, Receipt
from kellet.sdk.protocol.parts import missing_in, part_count

N = 2000  # 8,000 bytes and a header: 9 parts of 1,024
PLAN = linear_loss(N)


def lab_of(**config: Any) -> Lab:
    return Lab(PLAN, config.pop("algorithm", FedAvg()), **({"part_size": 1024} | config))


def update(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(N).astype(np.float32)


def missing(answer: Grant | Ack, body: bytes) -> list[int]:
    return list(missing_in(answer.missing, part_count(len(body), 1024)))


# -- transfers ------------------------------------------------------------------------


def test_a_grant_names_every_part_and_acks_name_what_is_left() -> None:
    lab = lab_of()
    a = Puppet(lab)
    header, body = a.body(update(1))
    grant = a.offer(header, body)
    assert isinstance(grant, Grant)
    assert (grant.worker, grant.window, grant.lease) == ("0", 8, 30.0)
    assert missing(grant, body) == list(range(9))
    assert [a.part(grant.uid, i, body) for i in (5, 2, 8)] == [[], [], []]
    (ack,) = a.part(grant.uid, 0, body)  # every few parts
    assert missing(ack, body) == [1, 3, 4, 6, 7]
    (again,) = a.part(grant.uid, 0, body)  # a part that is here already: it did not know
    assert again == ack
    for index in (1, 3, 4, 6):
        answers = a.part(grant.uid, index, body)
        assert not any(isinstance(answer, Receipt) for answer in answers)
    (receipt,) = a.part(grant.uid, 7, body)
    assert receipt.counted


def test_an_offer_said_twice_is_granted_what_is_still_missing() -> None:
    lab = lab_of()
    a = Puppet(lab)
    header, body = a.body(update(1))
    uid = a.offer(header, body).uid
    for index in (0, 1, 2):
        a.part(uid, index, body)
    assert missing(a.offer(header, body), body) == [3, 4, 5, 6, 7, 8]


def test_a_transfer_goes_on_after_the_aggregator_restarts(folder: Path) -> None:
    """What had arrived lies in the spool; only the rest is asked for again."""
    lab = lab_of(state=folder)
    a = Puppet(lab)
    header, body = a.body(update(1))
    uid = a.offer(header, body).uid
    for index in (0, 3, 4, 8):
        a.part(uid, index, body)
    lab.start()
    a.hello()
    grant = a.offer(header, body)
    assert missing(grant, body) == [1, 2, 5, 6, 7]
    for index in (1, 2, 5, 6):
        a.part(uid, index, body)
    (receipt,) = a.part(uid, 7, body)
    assert receipt.counted
    kept = lab.spool.read(uid, len(body))
    assert kept == body


def test_what_was_counted_is_read_back_after_a_restart(folder: Path) -> None:
    lab = lab_of(state=folder, algorithm=Scaffold(), target=2)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.send(update(1))
    total = lab.machine.control.integers()
    lab.start()
    assert lab.machine.control.integers() == total
    b.hello()
    b.send(update(2))
    undisturbed = lab_of(algorithm=Scaffold(), target=2)
    for name, seed in (("b", 2), ("a", 1)):  # in the other order, too
        Puppet(undisturbed, name).send(update(seed))
    assert lab.machine.digest == undisturbed.machine.digest
    assert lab.machine.control.integers() == undisturbed.machine.control.integers()


def test_a_body_that_was_lost_from_the_spool_is_said_so(folder: Path) -> None:
    lab = lab_of(state=folder)
    a = Puppet(lab)
    receipt = a.send(update(1))
    path = lab.spool.path(receipt.uid)
    assert path is not None
    path.write_bytes(b"short")
    with pytest.raises(StorageError, match=r"cannot be read back.*5 of"):
        lab.start()
    path.unlink()
    with pytest.raises(StorageError, match="cannot be read back"):
        lab.start()


def test_closing_a_round_empties_the_spool(folder: Path) -> None:
    lab = lab_of(state=folder, target=1)
    Puppet(lab, "b", hello=True)
    half = Puppet(lab, "half")
    header, body = half.body(update(3))
    half.part(half.offer(header, body).uid, 0, body)
    assert len(list((folder / "spool").iterdir())) == 1
    Puppet(lab, "a").send(update(1))
    assert list((folder / "spool").iterdir()) == []


def test_a_device_may_come_back_with_another_part_size(folder: Path) -> None:
    lab = lab_of(state=folder)
    a = Puppet(lab)
    header, body = a.body(update(1))
    uid = a.offer(header, body).uid
    a.part(uid, 0, body)
    grant = a.offer(header, body, part_size=4096)
    assert list(missing_in(grant.missing, 3)) == [0, 1, 2]
    lab.config = type(lab.config)(**(vars(lab.config) | {"part_size": 4096}))
    for index in (1, 2):
        a.part(uid, index, body)
    (receipt,) = a.part(uid, 0, body)
    assert receipt.counted


def test_smaller_parts_go_on_where_larger_ones_were(folder: Path) -> None:
    """9,000 bytes in 3 parts of 4,096, then in 9 of 1,024: what came whole is not asked for."""
    lab = lab_of(state=folder)
    a = Puppet(lab)
    header, body = a.body(update(1))
    assert 8 * 1024 < len(body) < 9 * 1024
    uid = a.offer(header, body, part_size=4096).uid
    a.part(uid, 1, body, part_size=4096)
    grant = a.offer(header, body)
    assert list(missing_in(grant.missing, 9)) == [0, 1, 2, 3, 8]
    # One of the earlier offer that comes late is told by its length.
    a.part(uid, 0, body, part_size=4096)
    assert lab.reports("refused")[-1]["device"] == "a"
    answers: list[Any] = []
    for index in (0, 1, 2, 3, 8):
        answers += a.part(uid, index, body)
    assert answers[-1].counted


def test_parts_of_nobody_and_damaged_parts_are_dropped() -> None:
    lab = lab_of()
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    header, body = a.body(update(1))
    uid = a.offer(header, body).uid
    assert a.part(b"?" * 16, 0, body) == []
    assert b.part(uid, 0, body) == []  # another device's
    assert a.part(uid, 9, body + bytes(2048)) == []  # beyond the end
    assert a.part(uid, 8, body + bytes(2048)) == []  # longer than the last part is
    assert missing(a.offer(header, body), body) == list(range(9))
    assert lab.reports("refused")


# -- bodies that lie --------------------------------------------------------------------


def test_a_digest_that_stays_wrong_is_refused() -> None:
    lab = lab_of()
    a = Puppet(lab)
    header, body = a.body(update(1))
    grant = a.offer(header, body, sha256=hashlib.sha256(b"something else").digest())
    answers: list[Any] = []
    for _ in range(3):
        for index in range(9):
            answers += a.part(grant.uid, index, body)
    receipt = answers[-1]
    assert isinstance(receipt, Receipt)
    assert (receipt.counted, receipt.reason) == (False, "digest")
    assert [type(answer) for answer in answers[:-1]] == [Ack] * len(answers[:-1])
    assert lab.ledger.totals() == (0, 1)
    assert a.offer(header, body) == receipt  # for good
    a.seq = 1
    assert a.send(update(1)).counted


def test_one_damaged_pass_is_forgiven() -> None:
    """A part that is wrong and has the right checksum: everything is asked for once more."""
    lab = lab_of()
    a = Puppet(lab)
    header, body = a.body(update(1))
    uid = a.offer(header, body).uid
    wrong = body[:2048] + bytes(1024) + body[3072:]
    for index in range(9):
        answers = a.part(uid, index, wrong if index == 2 else body)
    assert missing(a.offer(header, body), body) == list(range(9))
    for index in range(9):
        answers = a.part(uid, index, body)
    assert answers[-1].counted


def test_a_body_that_is_no_update_is_refused() -> None:
    lab = lab_of()
    a = Puppet(lab)
    header, body = a.body(update(1))
    for index, junk in enumerate([b"\x80\x04K\x01.", body[:-1], body + b"\0", b"KLU2" + body[4:]]):
        puppet = Puppet(lab, f"junk-{index}")
        made, _ = puppet.body(update(1))
        receipt = puppet.deliver(made, junk)
        assert (receipt.counted, receipt.reason) == (False, "header")
    assert a.deliver(header, body).counted


# -- admission --------------------------------------------------------------------------


def test_admission_full_asks_for_patience_and_grants_later() -> None:
    lab = lab_of(target=3, admission=12_000)  # room for one body of 8 KB
    a, b, c = (Puppet(lab, name) for name in "abc")
    first, second, third = a.body(update(1)), b.body(update(2)), c.body(update(3))
    assert isinstance(a.offer(*first), Grant)
    busy = b.offer(*second)
    assert isinstance(busy, Busy)
    assert busy.uid is not None
    assert busy.reason == "many uploads are under way"
    assert 0.5 < busy.after <= 1.0
    assert isinstance(c.offer(*third), Busy)
    assert isinstance(a.offer(*first), Grant)  # who is in stays in
    assert a.deliver(*first).counted
    assert b.deliver(*second).counted
    assert c.deliver(*third).counted
    assert len(lab.ledger.counted(1)) == 3


def test_an_update_larger_than_admission_is_taken_when_it_is_alone() -> None:
    lab = lab_of(target=2, admission=2048)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    first = a.body(update(1))
    assert isinstance(a.offer(*first), Grant)
    assert isinstance(b.offer(*b.body(update(2))), Busy)
    assert a.deliver(*first).counted


def test_a_lease_without_progress_ends_and_makes_room() -> None:
    lab = lab_of(target=3, admission=12_000, deadline=600)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    first, second = a.body(update(1)), b.body(update(2))
    uid = a.offer(*first).uid
    lab.wait(29)
    a.part(uid, 0, first[1])  # progress
    lab.wait(29)
    assert isinstance(b.offer(*second), Busy)
    lab.wait(2)
    assert isinstance(b.offer(*second), Grant)
    assert a.part(uid, 1, first[1]) == []  # a's place is gone
    assert isinstance(a.offer(*first), Busy)
    assert b.deliver(*second).counted
    assert a.deliver(*first).counted


def test_leases_end_in_the_order_of_their_last_progress() -> None:
    """Begun by a, b, c; b's ends first, for a and c went on."""
    lab = lab_of(target=3, deadline=600)
    uploads = lab.machine._counting._uploads
    puppets = [Puppet(lab, name) for name in "abc"]
    bodies = [puppet.body(update(i)) for i, puppet in enumerate(puppets)]
    uids = [puppet.offer(*made).uid for puppet, made in zip(puppets, bodies, strict=True)]
    each = len(bodies[0][1])
    assert (uploads.granted_bytes, uploads.wake) == (3 * each, lab.now + 30)
    for wait, index in ((10, 2), (5, 0)):
        lab.wait(wait)
        puppets[index].part(uids[index], 0, bodies[index][1])
    lab.wait(15)
    assert (uploads.names, uploads.granted_bytes) == ({uids[0], uids[2]}, 2 * each)
    lab.wait(10)
    assert (uploads.names, uploads.granted_bytes) == ({uids[0]}, each)
    lab.wait(5)
    assert (uploads.names, uploads.granted_bytes, uploads.wake) == (frozenset(), 0, None)


def test_a_full_disk_asks_for_patience(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lab_of(state=folder)
    a = Puppet(lab)
    made = a.body(update(1))

    def full(_fd: int, _start: int, _length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        busy = a.offer(*made)
    assert isinstance(busy, Busy)
    assert busy.reason == "the aggregator's disk is full"
    assert list((folder / "spool").iterdir()) == []
    assert a.deliver(*made).counted


def test_twenty_devices_share_a_narrow_admission(folder: Path) -> None:
    """Over a bad network: all are counted, and never were more bytes granted than allowed."""
    names = [f"device-{i:02}" for i in range(20)]
    fleet = Fleet(
        folder,
        linear_loss(600),
        {name: np.full((1, 600), i / 7) for i, name in enumerate(names)},
        Scaffold(local_lr=0.1, batch_size=0, local_steps=1),
        weather=Weather(lost=0.1, twice=0.1, slowest=1.0, stale=5.0),
        rounds=2,
        deadline=2000.0,
        admission=9000,  # three bodies of 2.6 KB
    ).start()
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, fleet.server.machine._counting._uploads.granted_bytes)
        fleet.after(0.1, watch)

    watch()
    fleet.heal()
    assert 5000 < most <= 9000
    assert [len(fleet.server.ledger.counted(r)) for r in (1, 2)] == [20, 20]
    fleet.check_end()


def test_many_parts_through_a_bad_network_and_restarts(folder: Path) -> None:
    data = {name: np.full((1, N), i + 1.0) for i, name in enumerate("ab")}
    fleet = Fleet(
        folder,
        PLAN,
        data,
        Scaffold(local_lr=0.01, batch_size=0, local_steps=1),
        weather=Weather(lost=0.2, twice=0.2, slowest=1.0, stale=20.0),
        seed=4,
        rounds=2,
        deadline=2000.0,
    ).start()
    for at in range(5, 200, 15):
        node = fleet.rng.choice(fleet.nodes)
        fleet.after(at, node.kill)
        fleet.after(at + 3, node.restart_if_dead)
        fleet.after(at + 7, fleet.rng.choice(fleet.nodes).cut)
        fleet.after(at + 8, lambda: [n.connect() for n in fleet.nodes])
    fleet.let_pass(220)
    fleet.heal()
    fleet.check_end()
    assert sum(node.life for node in fleet.nodes) >= 3


def test_the_body_is_on_the_disk_before_the_ledger_counts_it(folder: Path) -> None:
    """And the receipt comes after both: a power cut between any two loses nothing."""
    lab = lab_of(state=folder)
    order: list[str] = []
    keep, write = lab.spool.keep, lab.ledger.write_update
    lab.spool.keep = lambda *a: (order.append("body"), keep(*a))[1]  # type: ignore[func-returns-value, method-assign]
    lab.ledger.write_update = lambda *a: (order.append("row"), write(*a))[1]  # type: ignore[func-returns-value, method-assign]
    Puppet(lab).send(update(1))
    assert order == ["body", "row"]


def test_what_an_older_process_was_sending_is_not_completed(folder: Path) -> None:
    """A restored card trains again under the same name: the first body must not count for it.

    Its parts are still on their way when the new process says hello; that one would take the
    receipt for its own body's, and advance c_i by something else than was counted.
    """
    lab = lab_of(state=folder, algorithm=Scaffold(), target=2)
    a = Puppet(lab)
    header, first = a.body(update(1))
    uid = a.offer(header, first).uid
    for index in range(8):
        a.part(uid, index, first)
    restored = Puppet(lab, "a", nonce=a.nonce, boot=b"boot-two", incarnation=2)
    assert a.part(uid, 8, first) == []  # late, of a process that is gone
    assert lab.ledger.counted(1) == []

    header, second = restored.body(update(2))
    receipt = restored.deliver(header, second)
    if isinstance(receipt, Ack):  # the spool still has parts of the first body: all over again
        for index in range(9):
            (receipt,) = restored.part(uid, index, second)[-1:] or (receipt,)
    assert isinstance(receipt, Receipt)
    assert receipt.counted
    assert lab.spool.read(uid, len(second)) == second


def test_a_process_goes_on_with_the_transfer_that_it_knows_of(folder: Path) -> None:
    lab = lab_of(state=folder)
    a = Puppet(lab)
    header, body = a.body(update(1))
    uid = a.offer(header, body).uid
    for index in range(8):
        a.part(uid, index, body)
    again = Puppet(lab, "a", hello=False, nonce=a.nonce, boot=b"boot-two", incarnation=2)
    again.hello(pending=uid, epoch=1, audit=0, incarnation=2)
    (receipt,) = again.part(uid, 8, body)
    assert receipt.counted
