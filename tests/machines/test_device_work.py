"""A device's machine at work: fetching, training, uploading, and its receipts."""

from __future__ import annotations

import hashlib

from machines.alone import Alone, N, indices, outcome

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.device import StartTraining, Trained, TrainingStopped
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Publish, Subscribe, Tick, Unsubscribe
from kellet.sdk.protocol.messages import (
    Abort,
    Ack,
    Busy,
    Codecs,
    Grant,
    Receipt,
    Train,
)
from kellet.sdk.protocol.parts import bitmap, encode_part
from kellet.sdk.transport.base import Connected, Disconnected, Received

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
