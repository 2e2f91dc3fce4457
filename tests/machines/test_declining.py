"""A device that may not train now says so, is not waited for, and may change its mind."""

from __future__ import annotations

from typing import Any

import numpy as np
from machines.alone import Alone
from machines.network import Fleet
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.device import Leave
from kellet.sdk.protocol.messages import Abort, Decline, Join, Reject, Train
from kellet.server.cohort import Cohort
from kellet.server.selection import Uniform

PLAN = linear_loss(2)


class Moody(Alone):
    """A device with a reason, or none."""

    reason = "not charging"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.machine._consent = lambda: self.reason
        self.connect()
        self.welcome()


# -- the device ---------------------------------------------------------------------


def test_it_says_so_at_once_and_again_each_minute() -> None:
    alone = Moody()
    base = alone.announce()
    said = alone.said(alone.effects)[-1]
    assert isinstance(said, Decline)
    assert (said.round, said.base, said.reason) == (1, base, "not charging")
    assert alone.machine.doing == "nothing"
    assert alone.wait(59) == []
    (again,) = alone.wait(2)
    assert isinstance(again, Decline)
    assert len(alone.reports("declined")) == 1  # once for people
    alone.reason = "too hot"
    alone.wait(60)
    assert [r["reason"] for r in alone.reports("declined")] == ["not charging", "too hot"]


def test_with_consent_it_joins_the_round_that_is_still_open() -> None:
    alone = Moody()
    base = alone.announce()
    alone.reason = ""
    (join,) = alone.wait(61)
    assert isinstance(join, Join)
    assert join.base == base
    assert alone.machine.doing == "joining"


def test_told_to_train_all_the_same_it_does_not() -> None:
    alone = Moody()
    base = alone.announce()
    assert alone.hear(Train(round=1, base=base, seconds=50.0)) == []
    assert alone.machine.doing == "nothing"


def test_the_next_announcement_is_another_question() -> None:
    alone = Moody()
    alone.announce(1)
    alone.reason = ""
    alone.announce(2)
    assert isinstance(alone.said(alone.effects)[-1], Join)


def test_an_aggregator_that_came_back_is_told_again() -> None:
    alone = Moody()
    alone.announce()
    alone.hear(Reject(code="unknown", reason="say hello first"))
    (decline,) = alone.welcome()
    assert isinstance(decline, Decline)


def test_a_pending_update_and_a_leave_need_no_consent() -> None:
    alone = Moody()
    alone.reason = ""
    offer = alone.offer()
    alone.reason = "not charging"
    alone.receipt(offer)
    assert alone.machine.doing == "nothing"
    said = alone.said(alone.step(Leave()))
    assert [type(m).__name__ for m in said] == ["Offer"]


# -- the aggregator -----------------------------------------------------------------


def decline(puppet: Puppet, reason: str = "not charging", **changes: Any) -> list[Any]:
    lab = puppet.lab
    fields = {"nonce": puppet.nonce, "boot": puppet.boot, "round": lab.machine.round}
    return puppet.say(Decline(**(fields | {"base": lab.base, "reason": reason} | changes)))


def test_a_round_of_chosen_devices_does_not_wait_for_one_that_declined() -> None:
    lab = Lab(PLAN, FedAvg(), min_members=2, selection=Uniform(2))
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    assert lab.round.target == 2
    assert decline(b) == []
    assert lab.reports("declined") == [{"device": "b", "round": 1, "reason": "not charging"}]
    decline(b)
    assert len(lab.reports("declined")) == 1
    assert a.send(np.ones(2)).counted
    assert [row.state for row in lab.ledger.rounds()][:1] == ["closed"]
    assert lab.ledger.rounds()[0].summary["counted"] == ["a"]


def test_the_last_refusal_closes_a_round_that_has_its_quorum() -> None:
    lab = Lab(PLAN, FedAvg(), min_members=2, quorum=1)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.send(np.ones(2))
    assert lab.machine.round == 1
    decline(b)
    assert lab.machine.round == 2


def test_below_the_quorum_the_round_goes_on_until_its_deadline() -> None:
    lab = Lab(PLAN, FedAvg(), min_members=2, quorum=2, deadline=60.0)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.send(np.ones(2))
    decline(b)
    lab.wait(59)
    assert lab.machine.round == 1
    lab.wait(2)
    assert lab.ledger.rounds()[0].state == "abandoned"


def test_everyone_declines_and_the_round_is_abandoned_at_its_deadline() -> None:
    lab = Lab(PLAN, FedAvg(), min_members=2, deadline=60.0)
    for name in ("a", "b"):
        decline(Puppet(lab, name))
    lab.wait(59)
    assert lab.machine.round == 1
    lab.wait(2)
    assert [row.state for row in lab.ledger.rounds()][:1] == ["abandoned"]


def test_who_declined_may_join_later_and_is_waited_for_again() -> None:
    lab = Lab(PLAN, FedAvg(), min_members=2)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    decline(b)
    assert isinstance(b.join(), Train)
    a.send(np.ones(2))
    assert lab.machine.round == 1
    b.send(np.ones(2))
    assert lab.machine.round == 2


def test_a_place_that_is_declined_is_free_for_another() -> None:
    lab = Lab(PLAN, FedAvg(), min_members=3, target=1)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    Puppet(lab, "c")
    assert isinstance(a.join(), Train)
    assert not isinstance(b.join(), Train)
    decline(a)
    assert isinstance(b.join(), Train)


def test_a_refusal_of_another_round_or_of_a_stranger_is_nothing() -> None:
    lab = Lab(PLAN, FedAvg(), min_members=1)
    a = Puppet(lab, "a")
    decline(a, base=bytes(32))
    assert not lab.reports("declined")
    (answer,) = decline(Puppet(lab, "x", hello=False))
    assert isinstance(answer, Reject)


def test_an_update_of_who_declined_counts() -> None:
    """Hints decide who is waited for, never what is counted."""
    lab = Lab(PLAN, FedAvg(), min_members=1, target=1)
    a = Puppet(lab, "a")
    decline(a)
    header, body = a.body(np.ones(2))
    assert a.deliver(header, body).counted


def test_who_could_not_train_is_not_waited_for_either() -> None:
    lab = Lab(PLAN, FedAvg(), min_members=2)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    b.join()
    b.say(Abort(nonce=b.nonce, boot=b.boot, round=1, reason="the loss became nan"))
    a.send(np.ones(2))
    assert lab.machine.round == 2


def test_complete() -> None:
    cohort = Cohort(2, 1.0, None)
    assert not cohort.complete(1, ["a", "b"])
    cohort.count("a")
    assert not cohort.complete(1, ["a", "b"])
    cohort.decline("b")
    assert cohort.complete(1, ["a", "b"])
    assert not cohort.complete(1, ["a", "b", "c"])
    assert not cohort.complete(2, ["a", "b"])
    cohort.decline("a")  # an old message: it is counted
    assert cohort.declined == {"b"}


# -- both -----------------------------------------------------------------------------


def test_a_fleet_trains_without_the_one_that_may_not(folder: Any) -> None:
    data = {name: np.array([[1.0, i]]) for i, name in enumerate("abc")}
    fleet = Fleet(folder, quadratic(), data, Scaffold(), rounds=3, quorum=1)
    fleet.devices["c"].reason = "it is night"
    fleet.start().run()
    assert fleet.now < 20  # no round waited for its deadline
    counted = [set(row.summary["counted"]) for row in fleet.server.ledger.rounds()]
    assert counted == [{"a", "b"}] * 3
    fleet.check_end()
