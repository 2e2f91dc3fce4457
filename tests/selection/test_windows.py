"""Devices that are drawn among those that are willing, and what a restart keeps of it all."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, softmax_regression

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import UsageError
from kellet.sdk.histogram import to_shares
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Publish
from kellet.sdk.protocol.histograms import Histogram, Question
from kellet.sdk.protocol.messages import Abort, Busy, Decline, FromServer, Hello, State, Train
from kellet.sdk.transport.base import Received
from kellet.server import FleetConfig
from kellet.server.selection import Available, FirstCome, Similar, Uniform, Weighted

PLAN = linear_loss(1)
CLASSES = softmax_regression(2, 3)  # 9 parameters
LABELS = Question(classes=3)


def lab_of(selection: Any, devices: int, **more: Any) -> tuple[Lab, dict[str, Puppet]]:
    """A lab whose first round opens when the last of a, b, ... has enrolled."""
    settings = {"min_members": devices, "selection": selection, "deadline": 60.0}
    lab = Lab(more.pop("plan", PLAN), more.pop("algorithm", FedAvg()), **(settings | more))
    names = "abcdefgh"[:devices]
    return lab, {name: Puppet(lab, name) for name in names}


def told_to_train(lab: Lab, since: int = 0) -> list[str]:
    """To whom ``train`` was said, in order."""
    names = []
    for effect in lab.effects[since:]:
        address = isinstance(effect, Publish) and lab.machine.topics.parse(effect.topic)
        if address and address.channel == "ctl":
            message = wire.unpack(effect.payload, FromServer)
            if isinstance(message, Train):
                names.append(address.device)
    return names


def play(lab: Lab, puppets: dict[str, Puppet], rounds: int) -> list[list[str]]:
    """Let all be willing and those who are asked deliver; who was asked in each round."""
    asked = []
    for _ in range(rounds):
        since = len(lab.effects)
        for puppet in puppets.values():
            puppet.join()
        names = told_to_train(lab, since)
        for name in names:
            header, body = puppets[name].body(np.ones(lab.plan.n_update))
            assert puppets[name].deliver(header, body).counted
            puppets[name].seq = header.seq
        asked.append(names)
    return asked


# -- the window --------------------------------------------------------------------------


def test_nobody_is_asked_until_the_window_ends_and_then_as_many_as_wanted() -> None:
    lab, puppets = lab_of(Available(2, window=3.0), 5)
    assert lab.round.target == 2
    answers = [puppets[name].join() for name in "abc"]
    assert [type(answer) for answer in answers] == [Busy] * 3
    assert answers[0].after == 4.0  # by when it is over, should the message be lost
    assert lab.machine.wake == 3.0
    lab.wait(2.9)
    assert told_to_train(lab) == []
    lab.wait(0.1)
    drawn = told_to_train(lab)
    assert len(drawn) == 2
    assert set(drawn) < set("abc")
    assert lab.machine.wake == 60.0
    # Who was drawn and heard nothing is told again; the others are too late.
    answers = [type(puppets[name].join()) for name in drawn]
    assert answers == [Train] * 2
    left = (set("abcde") - set(drawn)).pop()
    assert isinstance(puppets[left].join(), Busy)


def test_when_all_have_answered_the_window_is_over() -> None:
    lab, puppets = lab_of(Available(2, window=30.0), 4)
    for name in "abc":
        puppets[name].join()
    assert told_to_train(lab) == []
    puppets["d"].join()
    assert len(told_to_train(lab)) == 2


@pytest.mark.parametrize("how", ["declines", "is gone"])
def test_nobody_waits_for_who_cannot_come(how: str) -> None:
    lab, puppets = lab_of(Available(2, window=30.0), 3)
    c = puppets["c"]
    if how == "declines":
        fields = {"nonce": c.nonce, "boot": c.boot, "round": 1, "base": lab.base}
        c.say(Decline(**fields, reason="not charging"))
    else:
        state = wire.pack(State(online=False, boot=c.boot))
        lab.step(Received(lab.machine.topics.state("c"), state))
    puppets["a"].join()
    puppets["b"].join()
    assert sorted(told_to_train(lab)) == ["a", "b"]


def test_who_was_quick_to_connect_is_not_preferred() -> None:
    """First come asks a and b in each round; with a window all have their turn."""
    first, puppets = lab_of(FirstCome(), 4)
    assert play(first, puppets, 6) == [["a", "b"]] * 6
    lab, puppets = lab_of(Available(2), 4)
    rounds = play(lab, puppets, 12)
    assert lab.now == 0  # and none of them waited
    for one, other in zip(rounds[::2], rounds[1::2], strict=True):
        assert sorted(one + other) == ["a", "b", "c", "d"]
    assert len({tuple(sorted(pair)) for pair in rounds}) > 2  # not always the same pairs


def test_whoever_comes_after_the_draw_has_a_place_that_is_left() -> None:
    lab, puppets = lab_of(Available(2), 4)
    puppets["a"].join()
    lab.wait(1.0)
    assert told_to_train(lab) == ["a"]
    assert isinstance(puppets["d"].join(), Train)
    assert isinstance(puppets["b"].join(), Busy)
    d = puppets["d"]
    d.say(Abort(nonce=d.nonce, boot=d.boot, round=1, reason="no memory"))
    assert isinstance(puppets["b"].join(), Train)


def test_a_device_that_goes_while_it_waits_is_not_drawn() -> None:
    lab, puppets = lab_of(Available(2), 4)
    puppets["a"].join()
    puppets["b"].join()
    state = wire.pack(State(online=False, boot=puppets["a"].boot))
    lab.step(Received(lab.machine.topics.state("a"), state))
    lab.wait(1.0)
    assert told_to_train(lab) == ["b"]


def test_a_window_in_which_nobody_comes_is_over_too() -> None:
    lab, puppets = lab_of(Uniform(2, window=5.0), 3)
    lab.wait(5.0)
    assert isinstance(puppets["c"].join(), Train)


def test_a_drawn_round_closes_when_it_has_enough() -> None:
    lab, puppets = lab_of(Uniform(3, enough=2, window=1.0), 4)
    assert lab.round.target == 2
    for puppet in puppets.values():
        puppet.join()
    drawn = told_to_train(lab)
    assert len(drawn) == 3
    for name in drawn[:2]:
        assert puppets[name].deliver(*puppets[name].body([1.0])).counted
    assert lab.machine.round == 2
    chosen, others = lab_of(Uniform(3, enough=2), 4)
    assert chosen.round.target == 2
    assert sum(isinstance(p.join(), Train) for p in others.values()) == 3


def test_a_window_as_long_as_the_round_is_refused() -> None:
    with pytest.raises(UsageError, match="selection"):
        FleetConfig(selection=Available(2, window=10.0), deadline=10.0)


# -- a restart ---------------------------------------------------------------------------


def test_after_a_restart_the_window_is_open_again(tmp_path: Path) -> None:
    lab, puppets = lab_of(Available(2), 3, state=tmp_path)
    puppets["a"].join()
    lab.start()
    for puppet in puppets.values():
        puppet.hello()
    since = len(lab.effects)
    assert isinstance(puppets["a"].join(), Busy)
    puppets["b"].join()
    lab.wait(1.0)
    assert sorted(told_to_train(lab, since)) == ["a", "b"]


@pytest.mark.parametrize(
    "selection", [Available(2), Weighted(2), Weighted(2, window=1.0), Similar(2), Uniform(2)]
)
def test_turns_and_samples_survive_a_restart(tmp_path: Path, selection: Any) -> None:
    """Two fleets, one of whose aggregators is started anew before each round: the same draws."""

    def run(state: Path, *, restarts: bool) -> tuple[list[list[str]], list[Any]]:
        state.mkdir()
        lab, puppets = lab_of(selection, 5, state=state, plan=CLASSES)
        rounds = []
        for number in range(1, 9):
            if restarts:
                lab.start()
                for puppet in puppets.values():
                    puppet.hello(seq=puppet.seq)
            since = len(lab.effects)
            for puppet in puppets.values():
                puppet.join()
            names = told_to_train(lab, since)
            for name in names:
                samples = 1 + 10 * "abcde".index(name) + number
                header, body = puppets[name].body(np.ones(9), samples=samples)
                assert puppets[name].deliver(header, body).counted
                puppets[name].seq = header.seq
            rounds.append(sorted(names))
        told = ("asked_entropy", "counted_entropy")
        return rounds, [{k: row.summary.get(k) for k in told} for row in lab.ledger.rounds()]

    assert run(tmp_path / "one", restarts=False) == run(tmp_path / "other", restarts=True)


def test_entropies_are_in_every_summary() -> None:
    lab, puppets = lab_of(Available(2), 4)
    play(lab, puppets, 2)
    one, two, _open = [row.summary for row in lab.ledger.rounds()]
    assert (
        one["asked_entropy"] == one["counted_entropy"] == pytest.approx(math.log(2) / math.log(4))
    )
    assert two["asked_entropy"] == two["counted_entropy"] == 1.0


def test_who_was_chosen_and_did_not_come_has_had_its_turn() -> None:
    lab, puppets = lab_of(Available(2, window=0), 4, quorum=1)
    chosen = set(lab.ledger.rounds()[0].summary["chosen"])
    came, missed = sorted(chosen)
    puppets[came].send([1.0])
    lab.wait(60)
    summary = lab.ledger.rounds()[0].summary
    assert summary["missed"] == [missed]
    assert set(lab.ledger.rounds()[1].summary["chosen"]) == set("abcd") - chosen


# -- histograms --------------------------------------------------------------------------


def histogram(*counts: int) -> Histogram:
    return Histogram(question=LABELS.name, shares=to_shares(counts, LABELS.groups))


def test_only_a_selection_that_needs_it_asks() -> None:
    for selection in (FirstCome(), Uniform(1), Weighted(1), Available(1)):
        lab, _ = lab_of(selection, 1, plan=CLASSES)
        assert lab.round.histogram is msgspec.UNSET
        assert b"histogram" not in lab.announcement
    lab, _ = lab_of(Similar(1), 1, plan=CLASSES)
    assert lab.round.asking == LABELS
    with pytest.raises(UsageError, match="classes"):
        Lab(PLAN, selection=Similar(1))  # its labels mean nothing


def stored(lab: Lab) -> dict[str, Histogram | None]:
    return {m.device: m.histogram for m in lab.ledger.members() if m.state == "active"}


def test_what_was_told_is_kept_until_it_is_taken_back(tmp_path: Path) -> None:
    lab, puppets = lab_of(Similar(2), 2, plan=CLASSES, state=tmp_path)
    a, b = puppets.values()
    a.hello(histogram=histogram(1, 2, 1))
    b.hello()
    lab.start()
    a.hello()  # says nothing of it: it stands
    assert stored(lab) == {"a": histogram(1, 2, 1), "b": None}
    assert lab.machine._roster.member("a").histogram == histogram(1, 2, 1)  # type: ignore[union-attr]
    a.hello(histogram=histogram(0, 0, 1))
    assert stored(lab)["a"] == histogram(0, 0, 1)
    a.send(np.ones(9))  # counting an update leaves it alone
    assert stored(lab)["a"] == histogram(0, 0, 1)
    a.hello(seq=1, histogram=None)
    assert stored(lab)["a"] is None
    assert lab.ledger._db.all("select * from histograms") == []


def test_what_a_member_told_goes_with_it(tmp_path: Path) -> None:
    lab, puppets = lab_of(Similar(2), 2, plan=CLASSES, algorithm=Scaffold(), state=tmp_path)
    a = puppets["a"]
    a.hello(histogram=histogram(1, 2, 1))
    other = Puppet(lab, "a", nonce=b"another nonce 16")
    other.hello()
    assert stored(lab)["a"] is None
    assert lab.ledger._db.all("select * from histograms") == []


def test_devices_of_one_kind_do_not_train_in_one_round() -> None:
    lab, puppets = lab_of(Similar(2, neighbours=1, fairness=0), 4, plan=CLASSES)
    for i, puppet in enumerate(puppets.values()):
        puppet.hello(histogram=histogram(*np.eye(3, dtype=int)[i % 2]))
    rounds = play(lab, puppets, 12)
    # The first round was chosen before anything was told. Then one of a, c and one of b, d.
    assert all(("a" in r or "c" in r) and ("b" in r or "d" in r) for r in rounds[1:])


def test_a_hello_of_too_many_bins_is_refused() -> None:
    lab, puppets = lab_of(Similar(1), 1, plan=CLASSES)
    a = puppets["a"]
    fields = {"nonce": a.nonce, "boot": a.boot, "incarnation": 1, "seq": 0}
    hello = Hello(**fields, pending=None, epoch=None, audit=None, histogram=histogram(1, 1, 1))
    raw = msgspec.msgpack.decode(wire.pack(hello))
    raw["histogram"]["shares"] = np.full(257, 1 / 257, "<f4").tobytes()
    lab.step(Received(lab.machine.topics.req("a"), msgspec.msgpack.encode(raw)))
    assert "histogram" in lab.reports("refused")[-1]["error"]
    assert stored(lab)["a"] is None
