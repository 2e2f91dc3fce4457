"""Who is asked to train, and what an operator's changes leave as they were."""

from __future__ import annotations

from pathlib import Path

from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.protocol.messages import Abort, Busy, State, Train
from kellet.sdk.protocol.wire import pack
from kellet.sdk.transport.base import Connected, Received
from kellet.server.selection import Schedule, Uniform

PLAN = linear_loss(1)


def states(lab: Lab) -> list[str]:
    return [row.state for row in lab.ledger.rounds()]


# -- who is asked ----------------------------------------------------------------------


def test_a_full_cohort_asks_for_patience_and_a_hint_frees_a_place() -> None:
    lab = Lab(PLAN, FedAvg(), target=2, over_select=1.0)
    a, b, c = (Puppet(lab, name) for name in "abc")
    assert isinstance(a.join(), Train)
    assert isinstance(b.join(), Train)
    assert isinstance(c.join(), Busy)
    assert isinstance(a.join(), Train)  # asked already: told again
    lab.step(Received(lab.machine.topics.state("a"), pack(State(online=False, boot=a.boot))))
    assert isinstance(c.join(), Train)
    # The hint decided who is asked, not what is counted.
    assert a.send([1.0]).counted
    assert c.send([3.0]).counted
    assert states(lab) == ["closed", "open"]


def test_a_hint_of_an_older_process_frees_nothing() -> None:
    lab = Lab(PLAN, FedAvg(), target=1, over_select=1.0)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.join()
    lab.step(Received(lab.machine.topics.state("a"), pack(State(online=False, boot=b"old-boot"))))
    assert isinstance(b.join(), Busy)


def test_a_device_that_gives_up_frees_its_place() -> None:
    lab = Lab(PLAN, FedAvg(), target=1, over_select=1.0)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.join()
    a.say(Abort(nonce=a.nonce, boot=a.boot, round=7, reason="another round"))
    assert isinstance(b.join(), Busy)
    a.say(Abort(nonce=a.nonce, boot=a.boot, round=1, reason="no memory"))
    assert isinstance(b.join(), Train)


def test_over_selection_asks_more_than_it_needs() -> None:
    lab = Lab(PLAN, FedAvg(), target=2, over_select=1.5)
    answers = [Puppet(lab, name).join() for name in "abcd"]
    assert [type(answer) for answer in answers] == [Train, Train, Train, Busy]


def test_the_seconds_that_remain_travel_with_the_request() -> None:
    lab = Lab(PLAN, FedAvg(), target=2, deadline=60)
    a = Puppet(lab)
    lab.wait(45)
    assert a.join().seconds == 15


def test_a_sample_is_the_same_after_a_restart_though_a_device_has_enrolled_since(
    folder: Path,
) -> None:
    names = [f"device-{i}" for i in range(6)]
    lab = Lab(PLAN, FedAvg(), state=folder, min_members=6, selection=Uniform(2, seed=3))
    puppets = {name: Puppet(lab, name) for name in names}
    asked = {name for name, puppet in puppets.items() if isinstance(puppet.join(), Train)}
    assert len(asked) == 2
    for i in range(30):
        Puppet(lab, f"newcomer-{i}")
    lab.start()
    for puppet in puppets.values():
        puppet.hello()
    assert {n for n, puppet in puppets.items() if isinstance(puppet.join(), Train)} == asked
    for name in asked:
        assert puppets[name].send([1.0]).counted
    assert states(lab) == ["closed", "open"]


def test_a_schedule_names_the_devices() -> None:
    lab = Lab(
        PLAN, FedAvg(), min_members=3, selection=Schedule(lambda r, ids: ["b"] if r == 1 else ids)
    )
    a, b, c = (Puppet(lab, name) for name in "abc")
    assert isinstance(a.join(), Busy)
    assert isinstance(b.join(), Train)
    assert b.send([1.0]).counted
    assert lab.round.target == 3
    for puppet in (a, b, c):
        assert isinstance(puppet.join(), Train)


# -- an operator changes settings between two processes --------------------------------


def test_the_open_round_keeps_the_terms_that_were_announced(folder: Path) -> None:
    lab = Lab(PLAN, FedAvg(server_lr=1.0), state=folder, target=2, deadline=60)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    assert a.send([1.0], samples=3).counted
    lab.start(algorithm=FedAvg(server_lr=0.5, weighting="uniform"), target=9)
    b.hello()
    assert b.send([5.0], samples=1).counted
    assert states(lab) == ["closed", "open"]
    assert lab.machine.model.tolist() == [2]  # by samples and at rate 1, as announced
    assert lab.round.weighting == "uniform"
    assert lab.round.target == 9


def test_parts_are_served_in_the_size_that_was_announced(folder: Path) -> None:
    """A device asks for parts by the announcement's size, whatever the operator sets later."""
    plan = linear_loss(1000)  # 4,000 bytes: 4 parts of 1,024
    lab = Lab(plan, FedAvg(), state=folder, part_size=1024)
    a = Puppet(lab)
    assert lab.round.part_size == 1024
    lab.start(part_size=2048)
    a.hello()
    parts = a.fetch(lab.round.model)
    assert sorted(parts) == [0, 1, 2, 3]
    assert b"".join(parts[i] for i in range(4)) == lab.machine.model.tobytes()


def test_connecting_again_publishes_the_same_announcement() -> None:
    lab = Lab(PLAN, FedAvg(), deadline=60)
    Puppet(lab)
    first = lab.announcement
    lab.wait(30)
    lab.step(Connected(None))
    assert lab.announcement == first
    lab.wait(30)  # and the deadline is still that of the first publication
    assert states(lab) == ["abandoned", "open"]
