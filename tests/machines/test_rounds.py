"""When a round closes, what is counted in it, and what becomes of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines.network import Fleet
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.protocol.messages import Busy, Idle, Receipt, ToAll, Train
from kellet.sdk.protocol.wire import unpack

PLAN = linear_loss(1)
ONE = 2**48


def states(lab: Lab) -> list[str]:
    return [row.state for row in lab.ledger.rounds()]


def counted(lab: Lab, round_: int) -> list[str]:
    return [update.device for update in lab.ledger.counted(round_)]


# -- closing -----------------------------------------------------------------------------


def test_a_round_closes_early_at_its_target() -> None:
    lab = Lab(PLAN, FedAvg(), target=2, quorum=1, deadline=60)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    assert a.send([1.0]).counted
    assert states(lab) == ["open"]
    assert b.send([3.0]).counted
    assert states(lab) == ["closed", "open"]
    assert lab.machine.model.tolist() == [2]


def test_at_the_deadline_it_closes_with_what_it_has() -> None:
    lab = Lab(PLAN, FedAvg(), target=3, quorum=2, deadline=60)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.send([1.0], samples=3)
    b.send([5.0], samples=1)
    lab.wait(59)
    assert states(lab) == ["open"]
    lab.wait(1)
    assert states(lab) == ["closed", "open"]
    assert lab.machine.model.tolist() == [2]  # (3*1 + 1*5)/4
    assert lab.ledger.rounds()[0].summary["counted"] == ["a", "b"]


def test_below_the_quorum_it_is_abandoned_delta_y_goes_and_delta_c_stays() -> None:
    lab = Lab(PLAN, Scaffold(), target=3, quorum=2, deadline=60)
    before = lab.machine.digest
    a = Puppet(lab, "a")
    assert a.send([-0.5]).counted  # A = .5: delta_c = 1
    lab.wait(60)
    assert states(lab) == ["abandoned", "open"]
    assert lab.machine.digest == before
    assert lab.machine.control.integers() == [ONE]
    # The next announcement says what was counted.
    assert lab.round.control is not None
    assert lab.blobs.get(lab.round.control.sha256) == np.float32(1).tobytes()
    # It says so after a restart, too.
    lab.start()
    assert lab.machine.control.integers() == [ONE]
    assert lab.machine.digest == before


def test_a_device_keeps_what_an_abandoned_round_counted(folder: Path) -> None:
    """With real machines: c_i advances on the receipt, and the gap stays 0."""
    data = {"quick": np.array([[1, 0]]), "gone": np.array([[2, 3]])}
    fleet = Fleet(
        folder,
        quadratic(initial=1.0),
        data,
        Scaffold(local_lr=0.1, batch_size=0, local_steps=2),
        rounds=1,
        quorum=2,
        deadline=30.0,
    ).start()
    fleet.run(lambda: fleet.server.machine.round == 1)
    fleet.devices["gone"].kill()
    fleet.run(lambda: fleet.server.machine.round == 2)
    assert [row.state for row in fleet.server.ledger.rounds()] == ["abandoned", "open"]
    quick = fleet.devices["quick"].store
    assert kernels.from_grid(quick.control(1))[0] == pytest.approx(0.95, abs=1e-6)
    assert fleet.server.machine.control.integers() == quick.control(1).tolist()
    assert fleet.server.machine.model.tolist() == [1]
    fleet.devices["gone"].restart()
    fleet.run()
    fleet.check_end()


def test_the_last_round_is_followed_by_idle() -> None:
    lab = Lab(PLAN, FedAvg(), target=1, rounds=1)
    Puppet(lab).send([1.0])
    assert lab.machine.finished
    assert unpack(lab.announcement, ToAll) == Idle(reason="finished", round=1)
    lab.start()
    assert lab.machine.finished
    assert unpack(lab.announcement, ToAll) == Idle(reason="finished", round=1)
    lab.start(rounds=2)
    assert lab.round.round == 2
    assert not lab.machine.finished


def test_the_first_round_waits_for_enough_members() -> None:
    lab = Lab(PLAN, FedAvg(), min_members=2, target=2)
    assert unpack(lab.announcement, ToAll) == Idle(reason="waiting", round=0)
    Puppet(lab, "a")
    assert lab.machine.round == 0
    Puppet(lab, "b")
    assert lab.round.round == 1
    assert lab.round.members == 2


def test_a_full_round_closes_after_a_restart_without_waiting(folder: Path) -> None:
    """The process died between the last row and the closing: who asks now is too late."""
    lab = Lab(PLAN, FedAvg(), state=folder, target=2)
    a, b, c = (Puppet(lab, name) for name in "abc")
    for puppet, delta in ((a, 1.0), (b, 3.0)):
        puppet.join()
        header, body = puppet.body([delta])
        if puppet is b:  # the row is written, and the machine is gone
            lab.ledger.close_round = None  # type: ignore[assignment, method-assign]
            with pytest.raises(TypeError):
                puppet.deliver(header, body)
            del lab.ledger.close_round
        else:
            puppet.deliver(header, body)
    assert states(lab) == ["open"]
    lab.start()
    assert states(lab) == ["closed", "open"]
    assert lab.machine.model.tolist() == [2]
    c.hello()
    assert isinstance(c.join(), Train)
    assert counted(lab, 1) == ["a", "b"]


# -- what is not counted ---------------------------------------------------------------


def test_an_update_that_comes_late_is_told_so() -> None:
    lab = Lab(PLAN, Scaffold(), target=2, quorum=1, deadline=60)
    quick, slow = Puppet(lab, "quick"), Puppet(lab, "slow")
    quick.join()
    slow.join()
    late = slow.body([-5.0])
    quick.send([-0.5])
    lab.wait(60)
    total = lab.machine.control.integers()
    receipt = slow.deliver(*late)
    assert (receipt.counted, receipt.reason, receipt.round) == (False, "late", 1)
    assert lab.machine.control.integers() == total
    assert counted(lab, 1) == ["quick"]
    assert slow.offer(*late) == receipt  # as often as it asks


def test_a_device_that_is_late_keeps_its_control(folder: Path) -> None:
    """Training outlasts the deadline: the receipt says late, c_i is unchanged, and on it goes."""
    data = {"quick": np.array([[1, 0]]), "slow": np.array([[2, 3]])}
    fleet = Fleet(
        folder,
        quadratic(initial=1.0),
        data,
        Scaffold(local_lr=0.1, batch_size=0, local_steps=2),
        rounds=2,
        target=2,
        quorum=1,
        deadline=30.0,
    ).start()
    slow = fleet.devices["slow"]
    fleet.run(lambda: slow.store.pending() is not None)
    slow.cut()
    fleet.run(lambda: fleet.server.machine.round == 2)
    before = slow.store.control(1).tolist()
    slow.connect()
    fleet.run()
    fleet.let_pass(10)
    receipts = slow.store.receipts()
    assert receipts[0] == (1, 1, False, "late")
    assert before == [0]
    assert receipts[1] == (2, 2, True, "counted")
    fleet.check_end()


def test_an_upload_that_is_overtaken_by_the_deadline_is_late() -> None:
    """Granted in time, complete too late: the bytes are there, and are not counted."""
    lab = Lab(PLAN, Scaffold(), target=2, quorum=1, deadline=60)
    quick, slow = Puppet(lab, "quick"), Puppet(lab, "slow")
    slow.join()
    header, body = slow.body([-5.0])
    grant = slow.offer(header, body)
    quick.send([-0.5])
    lab.wait(60)
    assert slow.part(grant.uid, 0, body) == []
    assert slow.offer(header, body).reason == "late"
    assert lab.machine.control.integers() == [ONE]


def test_a_second_update_for_the_same_round_is_refused() -> None:
    lab = Lab(PLAN, Scaffold(), target=2)
    a = Puppet(lab)
    first = a.body([-0.5])
    assert a.send([-0.5]).counted
    again = a.deliver(*first)
    assert (again.counted, again.reason) == (True, "counted")  # the same one: its receipt
    other = a.send([-7.0])
    assert (other.counted, other.reason) == (False, "duplicate")
    assert lab.machine.control.integers() == [ONE]
    assert counted(lab, 1) == ["a"]
    # Nor under a new installation of the same device.
    fresh = Puppet(lab, "a", nonce=b"n" * 16, boot=b"another1")
    assert isinstance(fresh.join(), Busy)
    assert fresh.send([-7.0]).reason == "duplicate"
    assert lab.machine.control.integers() == [ONE]


def test_two_updates_on_the_way_at_once_count_once() -> None:
    """Both are granted before either is complete."""
    lab = Lab(PLAN, Scaffold(), target=3)
    a = Puppet(lab)
    one, two = a.body([-0.5]), a.body([-7.0], seq=2)
    grants = [a.offer(*one), a.offer(*two)]
    (first,) = a.part(grants[0].uid, 0, one[1])
    (second,) = a.part(grants[1].uid, 0, two[1])
    assert (first.counted, second.counted, second.reason) == (True, False, "duplicate")
    assert lab.machine.control.integers() == [ONE]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"base": b"?" * 32}, "late"),  # of a round there was, and not of this announcement
        ({"base": b"?" * 32, "round": 77}, "foreign"),
        ({"seq": 0}, "sequence"),
    ],
)
def test_an_offer_is_refused_before_its_bytes(change: dict[str, Any], reason: str) -> None:
    lab = Lab(PLAN, Scaffold())
    a = Puppet(lab)
    header, body = a.body([-0.5])
    made, sent = a.body([-0.5], **change)
    answer = a.offer(made, sent)
    assert isinstance(answer, Receipt)
    assert (answer.counted, answer.reason) == (False, reason)
    assert a.deliver(header, body).counted  # the right one is still welcome


@pytest.mark.parametrize(
    "damage",
    [{"base": b"?" * 32}, {"seq": 9}, {"round": 9}, {"round": 0}, {"size": 1 << 20}, {"size": 0}],
    ids=lambda damage: next(iter(damage)),
)
def test_a_damaged_offer_is_no_end_to_the_update(damage: dict[str, Any]) -> None:
    """A receipt for it would tell the device "not counted" of what is counted a moment later."""
    lab = Lab(PLAN, Scaffold())
    a = Puppet(lab)
    header, body = a.body([-0.5])
    granted = a.offer(header, body)
    assert a.offer(header, body, **damage) is None
    assert len(lab.reports("refused")) == 1
    (receipt,) = a.part(granted.uid, 0, body)
    assert receipt.counted
    assert [row.device for row in lab.ledger.counted(1)] == ["a"]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"device": "b"}, "identity"),
        ({"nonce": b"x" * 16}, "identity"),
        ({"seq": 9}, "identity"),
        ({"round": 9}, "foreign"),
        ({"base": b"x" * 32}, "foreign"),
        ({"epoch": 9}, "epoch"),
        ({"codec": "none"}, "header"),
        ({"steps": 0}, "header"),
        ({"rate_sum": 0.0}, "header"),
        ({"rate_sum": -1.0}, "header"),
        ({"samples": 0}, "no_samples"),
        ({"kind": "leave"}, "header"),
    ],
)
def test_a_body_that_is_not_what_was_offered_is_refused(
    header: dict[str, Any], reason: str
) -> None:
    lab = Lab(PLAN, Scaffold())
    a = Puppet(lab)
    a.join()
    offered, _ = a.body([-0.5])
    _, body = a.body([-0.5], **header)
    receipt = a.deliver(offered, body)
    assert (receipt.counted, receipt.reason) == (False, reason)
    assert lab.machine.control.integers() == [0]
    assert lab.ledger.totals() == (0, 1)  # it came with its bytes: written down
    assert a.offer(offered, body) == receipt


def test_a_norm_above_the_limit_is_refused() -> None:
    lab = Lab(linear_loss(2), FedAvg(), max_norm=5.0, target=3)
    assert Puppet(lab, "a").send([3.0, 4.0]).counted
    receipt = Puppet(lab, "b").send([3.0, 4.001])
    assert (receipt.counted, receipt.reason) == (False, "norm")
