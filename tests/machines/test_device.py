"""A device's machine by itself: what it says, when it says it again, and what it does not heed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest
from support.toy_plans import linear_loss

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import DeviceMachine, StartTraining, Trained, TrainingStopped
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Publish, Report, Subscribe, Tick, Unsubscribe
from kellet.sdk.protocol.messages import (
    Abort,
    Ack,
    Blob,
    Busy,
    Codecs,
    FromDevice,
    Get,
    Grant,
    Hello,
    Idle,
    Join,
    Offer,
    Receipt,
    Reject,
    Round,
    Train,
    Welcome,
    announcement_hash,
)
from kellet.sdk.protocol.parts import bitmap, decode_part, encode_part
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.store import Store
from kellet.sdk.trainer import Outcome
from kellet.sdk.transport.base import Connected, Disconnected, Received, Refused

PLAN = linear_loss(600)  # a model of 2,400 bytes: 3 parts of 1,024
N = 600
BOOT = b"boot-one"


def outcome(**changes: Any) -> Outcome:
    fields: dict[str, Any] = {
        "delta_y": np.full(N, -0.5, np.float32),
        "delta_c": np.full(N, 2**48, np.int64),
        "delta_c_sent": None,
        "steps": 1,
        "rate_sum": 0.5,
        "samples": 3,
        "loss": 1.0,
        "objective": 1.0,
        "drift": 12.0,
    }
    return Outcome(**(fields | changes))


@dataclass
class Alone:
    """The machine, a store in memory, and the messages of an aggregator that the test plays."""

    now: float = 0.0
    effects: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics = Topics("fleet")
        self.store = Store("a", nonce=b"n" * 16)
        self.cache = BlobCache()
        self.cache.put(PLAN.raw)
        self.machine = DeviceMachine(self.topics, self.store, self.cache, boot=BOOT)
        self.model = np.arange(N, dtype=np.float32).tobytes()
        self.control = np.zeros(N, np.float32).tobytes()

    def step(self, event: Any) -> list[Any]:
        made = self.machine.step(event, self.now)
        self.effects += made
        return made

    def said(self, effects: list[Any]) -> list[Any]:
        """The requests among these effects."""
        topic = self.topics.req("a")
        return [
            wire.unpack(e.payload, FromDevice)
            for e in effects
            if isinstance(e, Publish) and e.topic == topic
        ]

    def hear(self, message: msgspec.Struct) -> list[Any]:
        return self.said(self.step(Received(self.topics.ctl("a"), wire.pack(message))))

    def wait(self, seconds: float) -> list[Any]:
        """What is said in that time: a tick whenever the machine wants one."""
        end, said = self.now + seconds, []
        while self.machine.wake is not None and self.machine.wake <= end:
            self.now = max(self.now, self.machine.wake)
            said += self.said(self.step(Tick()))
        self.now = end
        return said

    def connect(self) -> list[Any]:
        return self.said(self.step(Connected(None)))

    def welcome(self, epoch: int = 1, **fields: Any) -> list[Any]:
        answer = {"boot": BOOT, "epoch": epoch, "receipt": None, "audit": "none"} | fields
        return self.hear(Welcome(**answer))

    def announce(self, number: int = 1, **changes: Any) -> bytes:
        """Publish an announcement; its hash."""
        raw = self.announcement(number, **changes)
        self.step(Received(self.topics.round, raw))
        return announcement_hash(raw)

    def announcement(self, number: int = 1, **changes: Any) -> bytes:
        fields: dict[str, Any] = {
            "round": number,
            "epoch": 1,
            "plan": Blob(PLAN.id, len(PLAN.raw)),
            "model": Blob(hashlib.sha256(self.model).digest(), len(self.model)),
            "control": Blob(hashlib.sha256(self.control).digest(), len(self.control)),
            "algorithm": Scaffold().wire(),
            "weighting": "uniform",
            "codecs": Codecs(delta_c="derived"),
            "members": 1,
            "target": 1,
            "quorum": 1,
            "deadline": 60.0,
            "valid": 60.0,
            "part_size": 1024,
            "seed": 0,
        }
        return wire.pack(Round(**(fields | changes)))

    def serve(self, data: bytes) -> list[Any]:
        """Publish all parts of a blob."""
        effects: list[Any] = []
        sha256 = hashlib.sha256(data).digest()
        for index in range(-(-len(data) // 1024)):
            part = encode_part(sha256[:16], index, data[index * 1024 : (index + 1) * 1024])
            effects += self.step(Received(self.topics.blob(sha256, index), part))
        return effects

    def train(self, number: int = 1, **changes: Any) -> bytes:
        """Connect and go on until training begins; the announcement's hash."""
        if not self.machine.linked:
            self.connect()
            self.welcome()
        base = self.announce(number, **changes)
        self.hear(Train(round=number, base=base, seconds=50.0))
        for data in (self.model, self.control):
            if hashlib.sha256(data).digest() not in self.cache:
                self.serve(data)
        assert self.machine.doing == "training"
        return base

    def offer(self, number: int = 1) -> Offer:
        """Go on until an update is offered."""
        base = self.train(number)
        (offer,) = self.said(self.step(Trained(base, outcome())))
        assert isinstance(offer, Offer)
        return offer

    def receipt(self, offer: Offer, counted: bool = True, reason: str = "counted") -> list[Any]:
        return self.hear(
            Receipt(uid=offer.uid, seq=offer.seq, round=offer.round, counted=counted, reason=reason)
        )

    def reports(self, kind: str) -> list[Any]:
        return [e.data for e in self.effects if isinstance(e, Report) and e.kind == kind]


def indices(effects: list[Any]) -> list[int]:
    """The parts of an update among these effects."""
    return [decode_part(e.payload).index for e in effects if isinstance(e, Publish) and e.bulk]


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
    assert alone.machine.wake is None


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


# -- fetching -------------------------------------------------------------------------------


def test_it_fetches_what_it_lacks_by_digest() -> None:
    alone = Alone()
    alone.connect()
    alone.welcome()
    base = alone.announce()
    gets = alone.hear(Train(round=1, base=base, seconds=50.0))
    assert [g.sha256 for g in gets] == [
        hashlib.sha256(alone.model).digest(),
        hashlib.sha256(alone.control).digest(),
    ]
    assert [g.missing for g in gets] == [bitmap({0, 1, 2}, 3)] * 2
    assert [e for e in alone.effects if isinstance(e, Subscribe)]

    sha256 = hashlib.sha256(alone.model).digest()
    junk = encode_part(sha256[:16], 0, bytes(1024))  # right in form, and wrong
    alone.step(Received(alone.topics.blob(sha256, 0), junk))
    alone.step(Received(alone.topics.blob(sha256, 1), junk))  # another index than the topic's
    alone.step(Received(alone.topics.blob(sha256, 1), junk[:-1] + b"\1"))  # damaged
    gets = alone.wait(2)
    assert [g.missing for g in gets] == [bitmap({1, 2}, 3), bitmap({0, 1, 2}, 3)]
    alone.serve(alone.model)  # part 0 is there already: the whole does not have its digest
    assert sha256 not in alone.cache
    assert alone.wait(3)[0].missing == bitmap({0, 1, 2}, 3)
    alone.serve(alone.model)
    assert sha256 in alone.cache
    assert alone.machine.doing == "fetching"
    effects = alone.serve(alone.control)
    (start,) = [e for e in effects if isinstance(e, StartTraining)]
    assert (start.announced.base, start.seconds) == (base, 50.0)
    assert [e for e in effects if isinstance(e, Unsubscribe)]


def test_another_announcement_stops_the_fetching() -> None:
    alone = Alone()
    alone.connect()
    alone.welcome()
    alone.hear(Train(round=1, base=alone.announce(), seconds=50.0))
    assert alone.machine.doing == "fetching"
    alone.announce(2)
    assert alone.machine.doing == "joining"
    assert alone.serve(alone.model) == []


# -- training -------------------------------------------------------------------------------


def test_work_for_another_announcement_is_dropped() -> None:
    alone = Alone()
    base = alone.train(1)
    alone.train(2)
    assert alone.step(Trained(base, outcome())) == []
    assert alone.step(TrainingStopped(base, "why")) == []
    assert alone.store.pending() is None
    assert alone.machine.doing == "training"


def test_training_that_gives_nothing_says_so_and_does_not_try_again() -> None:
    alone = Alone()
    base = alone.train()
    (abort,) = alone.said(alone.step(TrainingStopped(base, "the loss became nan " * 50)))
    assert isinstance(abort, Abort)
    assert abort.round == 1
    assert len(abort.reason) == 300
    alone.step(Disconnected("cut"))
    alone.connect()
    assert alone.welcome() == []
    alone.announce(2)
    assert alone.machine.doing == "joining"


def test_training_goes_on_while_the_link_is_down() -> None:
    alone = Alone()
    base = alone.train()
    alone.step(Disconnected("cut"))
    assert alone.machine.training_base == base
    assert alone.said(alone.step(Trained(base, outcome()))) == []  # nobody would hear it
    assert alone.store.pending() is not None
    (hello,) = alone.connect()
    assert hello.pending == alone.store.pending_uid()
    (offer,) = alone.welcome()
    assert offer.uid == hello.pending


def test_the_same_work_has_the_same_name_after_a_restart() -> None:
    first, second = Alone(), Alone()
    assert first.offer().uid == second.offer().uid


# -- uploading ------------------------------------------------------------------------------


def test_a_window_of_parts_and_then_by_acknowledgement() -> None:
    alone = Alone()
    offer = alone.offer()
    assert offer.size == len(alone.store.pending().body)  # type: ignore[union-attr]
    assert offer.part_size == 1024
    everything = bitmap(range(3), 3)

    def grant(missing: bytes, window: int = 2) -> list[int]:
        message = Grant(uid=offer.uid, worker="7", missing=missing, window=window, lease=30.0)
        effects = alone.step(Received(alone.topics.ctl("a"), wire.pack(message)))
        assert all(e.topic == alone.topics.up("7", "a") for e in effects if isinstance(e, Publish))
        return indices(effects)

    assert grant(everything) == [0, 1]
    assert grant(everything) == []  # they are on their way
    ack = wire.pack(Ack(uid=offer.uid, missing=bitmap({1, 2}, 3)))
    assert indices(alone.step(Received(alone.topics.ctl("a"), ack))) == [2]
    alone.now += 10  # long enough to take them for lost
    assert grant(bitmap({1, 2}, 3)) == [1, 2]
    stranger = Ack(uid=b"?" * 16, missing=everything)
    assert indices(alone.step(Received(alone.topics.ctl("a"), wire.pack(stranger)))) == []


def test_an_offer_is_repeated_with_patience() -> None:
    alone = Alone()
    offer = alone.offer()
    times = []
    for _ in range(6):
        assert alone.machine.wake is not None
        times.append(alone.machine.wake - alone.now)
        alone.now = alone.machine.wake
        assert alone.said(alone.step(Tick())) == [offer]
    assert times == [2, 4, 8, 16, 32, 60]
    alone.hear(Busy(after=7.0, uid=offer.uid))
    assert alone.machine.wake == alone.now + 7


def test_after_the_link_was_lost_a_grant_is_waited_for() -> None:
    alone = Alone()
    offer = alone.offer()
    alone.hear(Grant(uid=offer.uid, worker="7", missing=bitmap(range(3), 3), window=2, lease=30.0))
    alone.step(Disconnected("cut"))
    alone.connect()
    assert alone.welcome() == [offer]
    ack = Ack(uid=offer.uid, missing=bitmap(range(3), 3))
    assert indices(alone.step(Received(alone.topics.ctl("a"), wire.pack(ack)))) == []


def test_a_receipt_settles_once() -> None:
    alone = Alone()
    offer = alone.offer()
    assert alone.store.control(N).tolist() == [0] * N
    alone.receipt(offer)
    assert alone.store.control(N).tolist() == [2**48] * N
    assert alone.machine.doing == "nothing"
    alone.receipt(offer)
    assert alone.store.control(N).tolist() == [2**48] * N
    alone.receipt(offer, counted=False, reason="late")
    assert alone.store.receipts() == [(1, 1, True, "counted")]
    assert alone.store.seq == 1


def test_a_refusal_leaves_the_control_as_it_was() -> None:
    alone = Alone()
    alone.receipt(alone.offer())
    alone.receipt(alone.offer(2), counted=False, reason="late")
    assert alone.store.control(N).tolist() == [2**48] * N
    assert alone.store.seq == 2
    assert alone.store.pending() is None


def test_the_receipt_may_come_with_the_welcome() -> None:
    alone = Alone()
    offer = alone.offer()
    alone.step(Disconnected("cut"))
    alone.connect()
    receipt = Receipt(uid=offer.uid, seq=1, round=1, counted=True, reason="counted")
    assert alone.welcome(receipt=receipt) == []
    assert alone.store.control(N).tolist() == [2**48] * N


def test_a_new_epoch_voids_what_is_pending() -> None:
    alone = Alone()
    offer = alone.offer()
    alone.step(Disconnected("cut"))
    alone.connect()
    alone.welcome(epoch=2)
    assert alone.store.pending() is None
    assert alone.store.seq == 1  # the sequence goes on
    alone.receipt(offer)
    assert alone.store.control(N).tolist() == [0] * N


def test_parts_fit_through_the_link() -> None:
    alone = Alone()
    alone.cache.put(alone.model)
    alone.cache.put(alone.control)
    alone.step(Connected(max_payload=65_536))
    alone.welcome()
    base = alone.train(part_size=1 << 20)
    alone.step(Disconnected("cut"))
    alone.step(Connected(max_payload=4096))
    alone.welcome()
    (offer,) = alone.said(alone.step(Trained(base, outcome())))
    assert offer.part_size == 4096 - 64


def test_fedavg_needs_no_control() -> None:
    alone = Alone()
    base = alone.train(
        algorithm=FedAvg().wire(), weighting="samples", codecs=Codecs(), control=None
    )
    (offer,) = alone.said(alone.step(Trained(base, outcome(delta_c=None))))
    alone.receipt(offer)
    assert alone.store.control(N).tolist() == [0] * N
    assert alone.store.audit() == 0
