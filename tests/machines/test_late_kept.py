"""What an aggregator keeps of announcements that may still be named, and what it goes on from."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines.late import GRID, deliver, lab_of, one_round_late, sums
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss

from kellet.sdk.errors import StorageError
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.messages import Receipt, Round
from kellet.server.blobs import Blobs


def test_blobs_of_what_may_be_named_are_served_out_of_the_directory(folder: Path) -> None:
    lab = Lab(linear_loss(1, initial=5.0), late="buffer", min_members=2, max_stale=1, state=folder)
    a, b, _ = one_round_late(lab)
    first: Round = wire.unpack(lab.ledger.rounds()[0].announcement, Round)
    assert first.control is not None
    for blob in (first.model, first.control):
        assert blob.sha256 not in lab.blobs._held
        assert set(b.fetch(blob)) == {0}
    assert a.send([1.0]).counted
    lab.wait(60)
    for blob in (first.model, first.control):
        assert lab.blobs.get(blob.sha256) is None


def test_memory_is_that_of_two_announcements(folder: Path) -> None:
    """Whatever may be named, in memory are the open round's blobs."""
    lab = lab_of(state=folder, max_stale=8, target=1, buffer=1)
    a = Puppet(lab, "a")
    Puppet(lab, "b")
    for step in range(12):
        assert a.send([step + 1.0]).counted
    assert len(list((folder / "blobs").iterdir())) == 1 + 9 + 9  # the plan, models, controls
    assert len(lab.blobs._held) <= 3


def test_an_update_whose_control_is_gone_is_late(folder: Path) -> None:
    lab = lab_of(state=folder)
    _, b, base = one_round_late(lab)
    first: Round = wire.unpack(lab.ledger.rounds()[0].announcement, Round)
    assert first.control is not None
    (folder / "blobs" / first.control.sha256.hex()).unlink()
    lab.start()
    b.hello()
    assert deliver(b, 3.0, base, 1).reason == "late"
    assert lab.machine.control.integers() == [-2 * GRID]


def test_a_counted_update_whose_control_is_gone_stops_the_aggregator(folder: Path) -> None:
    lab = lab_of(state=folder)
    _, b, base = one_round_late(lab)
    assert deliver(b, 3.0, base, 1).counted
    first: Round = wire.unpack(lab.ledger.rounds()[0].announcement, Round)
    assert first.control is not None
    (folder / "blobs" / first.control.sha256.hex()).unlink()
    lab.blobs = Blobs(folder / "blobs")
    with pytest.raises(StorageError, match="round 1 is not in the state directory"):
        lab.start()


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_restart_comes_to_the_same_sums(folder: Path, on_disk: bool) -> None:
    lab = lab_of(state=folder if on_disk else None)
    a, b, base = one_round_late(lab)
    assert deliver(b, 3.0, base, 1).counted
    before = sums(lab)
    opened = lab.machine._round
    assert opened is not None
    lab.start()
    again = lab.machine._round
    assert sums(lab) == before
    assert again is not None
    assert (again.cohort.counted, again.cohort.late) == (opened.cohort.counted, ["b"])
    a.hello(seq=a.seq, epoch=1)
    assert a.send([2.0]).counted
    assert lab.machine.model[0] == 1 + 4220 / 2048


def test_a_transfer_goes_on_into_the_next_round(folder: Path) -> None:
    plan = linear_loss(600)  # three parts
    lab = Lab(plan, late="buffer", min_members=2, part_size=1024, state=folder)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    header, body = b.body([3.0] * 600)
    grant = b.offer(header, body)
    b.part(grant.uid, 0, body)
    assert a.send([1.0] * 600).counted
    lab.wait(20)
    b.part(grant.uid, 1, body)
    lab.wait(20)
    b.offer(header, body)
    lab.wait(20)
    assert lab.machine.round == 2
    (receipt,) = b.part(grant.uid, 2, body)
    assert (receipt.counted, receipt.round) == (True, 1)


def test_a_transfer_that_came_too_late_gives_its_room_back(folder: Path) -> None:
    plan = linear_loss(600)
    lab = Lab(
        plan, late="buffer", max_stale=1, min_members=2, part_size=1024, state=folder, target=1
    )
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    header, body = b.body([3.0] * 600)
    b.offer(header, body)
    uploads = lab.machine._counting._uploads
    for _ in range(2):
        assert uploads.granted_bytes == len(body)
        assert a.send([1.0] * 600).counted
    answer = b.offer(header, body)
    assert isinstance(answer, Receipt)
    assert answer.reason == "late"
    assert uploads.granted_bytes == 0
    assert a.send([1.0] * 600).counted
    assert list((folder / "spool").iterdir()) == []
