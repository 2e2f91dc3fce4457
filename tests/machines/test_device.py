"""What a device's machine says, when it says it again, and what it does not heed."""

from __future__ import annotations

from typing import Any

import pytest
from machines.alone import BOOT, Alone, outcome

from kellet.sdk.device import Leave, Trained
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Publish, Subscribe, Tick, Unsubscribe
from kellet.sdk.protocol.messages import (
    Busy,
    Get,
    Hello,
    Idle,
    Join,
    Receipt,
    Reject,
    Train,
)
from kellet.sdk.transport.base import Disconnected, Received, Refused

# -- hello ----------------------------------------------------------------------------------


def test_it_says_hello_first_and_again_until_it_is_welcome() -> None:
    alone = Alone()
    (hello,) = alone.connect()
    assert hello == Hello(
        nonce=b"n" * 16, boot=BOOT, incarnation=1, seq=0, pending=None, epoch=None, audit=None
    )
    state = [e for e in alone.effects if isinstance(e, Publish) and e.retain]
    assert [e.topic for e in state] == [alone.topics.state("a")]
    assert len(alone.wait(1.9)) == 0
    assert alone.wait(0.1) == [hello]  # 2 s, then 4, 8, 16, 30
    assert alone.wait(60) == [hello] * 4
    alone.welcome()
    assert alone.wait(1000) == []


def test_an_announcement_that_was_lost_is_asked_for_again() -> None:
    """The broker has kept it; one that holds a subscription already answers only a new one."""
    alone = Alone()
    alone.connect()
    alone.welcome()
    listen = [Unsubscribe(alone.topics.round), Subscribe(alone.topics.round)]
    alone.effects.clear()
    alone.wait(59)
    assert alone.effects == []
    alone.wait(1)
    assert alone.effects == listen
    alone.wait(120)
    assert alone.effects == listen * 3


def test_a_welcome_of_somebody_else_is_not_ours() -> None:
    alone = Alone()
    alone.connect()
    alone.welcome(boot=b"not-mine")
    assert alone.machine.wake is not None
    assert isinstance(alone.wait(3)[0], Hello)


def test_a_welcome_of_an_older_epoch_is_not_heeded() -> None:
    alone = Alone()
    alone.connect()
    alone.welcome(epoch=3)
    alone.step(Disconnected("cut"))
    alone.connect()
    alone.welcome(epoch=2)
    assert alone.store.epoch == 3
    assert isinstance(alone.wait(3)[0], Hello)  # it goes on asking
    alone.welcome(epoch=3)
    assert alone.wait(100) == []


def test_nothing_wakes_it_while_the_link_is_down() -> None:
    alone = Alone()
    alone.offer()
    alone.step(Disconnected("cut"))
    assert alone.machine.wake is None
    (hello,) = alone.connect()
    assert hello.pending == alone.store.pending_uid()


@pytest.mark.parametrize("field", ["boot", "nonce"])
def test_a_rejection_of_somebody_else_is_not_ours(field: str) -> None:
    alone = Alone()
    alone.connect()
    who = {"boot": BOOT, "nonce": b"n" * 16} | {field: b"another!" * (1 if field == "boot" else 2)}
    for code in ("fenced", "restored", "unknown"):
        assert alone.hear(Reject(code=code, reason="", **who)) == []  # type: ignore[arg-type]
    assert alone.machine.fatal is None
    assert alone.store.identity.nonce == b"n" * 16


def test_it_enrols_anew_once_however_often_it_is_told() -> None:
    alone = Alone()
    alone.offer()
    reject = Reject(code="restored", reason="an older copy", boot=BOOT, nonce=b"n" * 16)
    (hello,) = alone.hear(reject)
    assert hello.nonce != b"n" * 16
    assert (hello.seq, hello.pending, hello.epoch, hello.audit) == (0, None, None, None)
    alone.welcome()
    assert alone.hear(reject) == []
    assert alone.store.identity.nonce == hello.nonce


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Refused("not authorised"), "not authorised"),
        (Reject(code="fenced", reason="", boot=BOOT), "another process uses the device id 'a'"),
        (Reject(code="version", reason="", speaks=(2, 3)), "speaks protocol 2 to 3"),
    ],
)
def test_what_ends_it_says_the_repair(event: Any, text: str) -> None:
    alone = Alone()
    alone.connect()
    alone.step(event) if isinstance(event, Refused) else alone.hear(event)
    assert text in str(alone.machine.fatal)
    assert " - " in str(alone.machine.fatal)
    assert alone.machine.wake is None
    assert alone.step(Tick()) == []


def test_unknown_means_hello_again() -> None:
    alone = Alone()
    alone.train()
    (hello,) = alone.hear(Reject(code="unknown", reason="say hello first", boot=BOOT))
    assert isinstance(hello, Hello)
    assert alone.machine.doing == "training"  # the work goes on


# -- joining --------------------------------------------------------------------------------


def test_it_joins_until_it_is_asked() -> None:
    alone = Alone()
    alone.connect()
    alone.welcome()
    base = alone.announce()
    (join,) = [m for m in alone.said(alone.effects) if isinstance(m, Join)]
    assert (join.round, join.base) == (1, base)
    assert alone.wait(2) == [join]
    assert alone.wait(3) == [join]
    assert alone.hear(Busy(after=50.0, round=1)) == []
    assert alone.wait(49) == []
    assert alone.wait(1) == [join]
    assert alone.hear(Train(round=1, base=b"?" * 32, seconds=50.0)) == []  # another announcement
    gets = alone.hear(Train(round=1, base=base, seconds=50.0))
    assert [type(m) for m in gets] == [Get, Get]
    assert alone.hear(Train(round=1, base=base, seconds=50.0)) == []


def test_it_does_not_join_before_it_is_welcome() -> None:
    alone = Alone()
    alone.connect()
    alone.announce()
    assert not [m for m in alone.said(alone.effects) if isinstance(m, Join)]
    assert [type(m) for m in alone.welcome()] == [Join]


def test_it_does_not_train_twice_for_one_announcement() -> None:
    alone = Alone()
    offer = alone.offer()
    alone.receipt(offer, counted=False, reason="late")
    assert alone.machine.doing == "nothing"
    alone.step(Disconnected("cut"))
    alone.connect()
    assert alone.welcome() == []
    alone.announce(2)
    assert alone.machine.doing == "joining"


def test_it_does_not_join_a_round_whose_epoch_is_over() -> None:
    alone = Alone()
    alone.connect()
    alone.welcome(epoch=2)
    alone.announce(1, epoch=1)
    assert alone.machine.doing == "nothing"
    assert alone.store.epoch == 2
    alone.announce(2, epoch=2)
    assert alone.machine.doing == "joining"


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "fedopt"},
        {"name": "scaffold", "warmth": 3.0},
        {"name": "scaffold", "local_lr": "fast"},
        {"name": "fedprox", "mu": -1.0},
        {"name": "fedavg", "local_lr": 1e300},
        {"name": "fedavg", "batch_size": 1.5},
        {"name": "fedavg", "lr_decay": float("nan")},
        {},
        {"name": ["fedavg"]},
    ],
)
def test_an_algorithm_it_does_not_know_is_left_to_others(algorithm: dict[str, Any]) -> None:
    alone = Alone()
    alone.connect()
    alone.welcome()
    alone.announce(1)
    assert alone.machine.doing == "joining"
    alone.announce(2, algorithm=algorithm)
    assert alone.machine.doing == "nothing"
    (refused,) = alone.reports("refused")
    assert refused["topic"] == alone.topics.round
    alone.announce(3)
    assert alone.machine.doing == "joining"


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\xc1", b"pickle", b"\x81\xa1v\x02", bytes(5000)])
def test_bytes_that_are_no_message_are_reported_and_harmless(raw: bytes) -> None:
    alone = Alone()
    alone.train()
    for topic in (alone.topics.round, alone.topics.ctl("a"), alone.topics.ctl("b")):
        alone.step(Received(topic, raw))
    alone.step(Received("another/topic", raw))
    alone.step(Received(alone.topics.blob(bytes(32), 0), raw))
    assert alone.machine.doing == "training"
    assert len(alone.reports("refused")) == 2


def test_idle_ends_what_was_begun_but_not_what_is_pending() -> None:
    alone = Alone()
    base = alone.train()
    alone.step(Received(alone.topics.round, wire.pack(Idle(reason="waiting", round=1))))
    assert alone.machine.doing == "nothing"
    assert alone.step(Trained(base, outcome())) == []
    assert alone.store.pending() is None
    alone.offer(2)
    alone.step(Received(alone.topics.round, wire.pack(Idle(reason="finished", round=2))))
    assert alone.machine.doing == "settling"


# -- leaving --------------------------------------------------------------------------------


def test_a_leave_that_is_refused_is_tried_again_but_not_at_once() -> None:
    alone = Alone()
    alone.connect()
    alone.welcome()
    (offer,) = alone.said(alone.step(Leave()))
    refusal = {"counted": False, "reason": "inconsistent", "round": 0}
    assert alone.hear(Receipt(uid=offer.uid, seq=1, **refusal)) == []
    assert alone.wait(1.9) == []
    (again,) = alone.wait(0.1)
    assert (again.seq, again.base) == (2, offer.base)
    alone.hear(Receipt(uid=again.uid, seq=2, counted=True, reason="counted", round=0))
    assert alone.machine.left
    assert alone.machine.wake is None
    assert alone.step(Tick()) == []
