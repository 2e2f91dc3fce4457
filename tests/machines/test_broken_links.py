"""On a link that is cut again and again little is sent twice, whatever size parts begin with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from machines.alone import Alone, outcome

from kellet.sdk.device import Trained
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Effect, Publish
from kellet.sdk.protocol.messages import Ack, FromServer, Grant, Offer
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.store import Pending
from kellet.sdk.transport.base import Disconnected
from kellet.sdk.upload import Upload
from kellet.server.uploads import Spool, Uploads

TOPICS = Topics("cut")
WHO = (bytes(16), bytes(8))
KB = 1000


class Cut:
    """An upload over a link that breaks after so many bytes, into a real spool."""

    def __init__(self, folder: Path, body: bytes, part_size: int, after: int) -> None:
        pending = Pending(b"u" * 16, 1, 1, 1, bytes(32), hashlib.sha256(body).digest(), body, None)
        self.upload = Upload(TOPICS, "a", WHO, pending, part_size)
        self.uploads = Uploads(TOPICS, "0", Spool(folder), 8 << 20)
        self.left = self.after = after
        self.carried = self.cuts = 0
        self.now = 0.0
        self.late: list[bytes] = []  # whole parts that the broker still holds at a cut
        self.done = False

    def run(self) -> None:
        queue = list(self.upload.offer(self.now))
        while not self.done:
            assert queue
            effect = queue.pop(0)
            assert isinstance(effect, Publish)
            size = len(effect.payload)
            self.carried += min(size, self.left)
            self.left -= size
            if self.left < 0:
                self.cuts += 1
                self.left = self.after
                self.upload.link_lost()
                queue = list(self.upload.offer(self.now))
                continue
            queue += self._arrives(effect)

    def _arrives(self, effect: Publish) -> Iterable[Effect]:
        self.now += 0.1
        if not effect.bulk:
            offer = wire.unpack(effect.payload, Offer)
            complete, said = self.uploads.offer("a", offer, self.now)
        else:
            complete, said = self.uploads.part("a", effect.payload, self.now)
        self.done = complete is not None
        for answer in said:
            assert isinstance(answer, Publish)
            match wire.unpack(answer.payload, FromServer):
                case Grant() as grant:
                    yield from self.upload.granted(grant, self.now)
                case Ack() as ack:
                    yield from self.upload.acknowledged(ack, self.now)


@pytest.mark.parametrize(
    ("part_size", "after", "most"),
    [
        (256 << 10, 500 * KB, 1.2),
        (64 << 10, 500 * KB, 1.1),
        (64 << 10, 100 * KB, 1.2),
        (1 << 20, 100 * KB, 1.35),  # three cuts until the parts are small enough
        (16 << 10, 100 * KB, 1.1),
    ],
)
def test_little_is_sent_twice(part_size: int, after: int, most: float, tmp_path: Path) -> None:
    body = bytes(3_000_000)
    cut = Cut(tmp_path, body, part_size, after)
    cut.run()
    assert cut.cuts >= len(body) // after
    assert cut.carried < most * len(body)


def test_a_part_that_passes_no_cut_would_never_arrive(tmp_path: Path) -> None:
    """1 MiB parts on a link that carries 20 KB at a time: down to 4 KiB, of which four pass."""
    cut = Cut(tmp_path, bytes(200_000), 1 << 20, 20 * KB)
    cut.run()
    assert cut.upload.part_size == 4 << 10


def test_a_device_remembers_what_its_link_is_good_for() -> None:
    """The next update begins with what passed, and the one after with four times that."""
    alone = Alone()
    alone.cache.put(alone.model)
    alone.cache.put(alone.control)

    def offered(number: int) -> Offer:
        base = alone.train(number, part_size=1 << 20)
        (offer,) = alone.said(alone.step(Trained(base, outcome())))
        assert isinstance(offer, Offer)
        return offer

    offer = offered(1)
    alone.hear(Grant(uid=offer.uid, worker="0", missing=b"\1", window=8, lease=30.0))
    alone.step(Disconnected("cut"))
    alone.connect()
    (again,) = alone.welcome()
    assert (again.uid, again.size) == (offer.uid, offer.size)
    sizes = [offer.part_size, again.part_size]
    alone.receipt(again)
    for number in (2, 3):
        offer = offered(number)
        sizes.append(offer.part_size)
        alone.receipt(offer)
    assert sizes == [1 << 20, 256 << 10, 256 << 10, 1 << 20]


def test_no_full_part_is_as_long_as_an_earlier_last_one() -> None:
    """Or a late one would be taken for another: the last of 320 KiB in parts of 256."""
    body = bytes(320 << 10)
    pending = Pending(b"u" * 16, 1, 1, 1, bytes(32), bytes(32), body, None)
    upload = Upload(TOPICS, "a", WHO, pending, 256 << 10)
    upload.granted(Grant(uid=b"u" * 16, worker="0", missing=b"\3", window=8, lease=30.0), 0.0)
    upload.link_lost()
    assert upload.part_size == (64 << 10) + 1


def test_a_lost_link_without_parts_under_way_says_nothing_of_parts() -> None:
    upload = Upload(TOPICS, "a", WHO, PENDING, 64 << 10)
    upload.offer(0.0)
    upload.link_lost()
    assert upload.part_size == 64 << 10
    upload.granted(grant_of(upload), 0.0)
    upload.begin_anew()  # another aggregator, over the same link
    assert upload.part_size == 64 << 10


BODY = bytes(1_000_000)
PENDING = Pending(b"u" * 16, 1, 1, 1, bytes(32), hashlib.sha256(BODY).digest(), BODY, None)


def grant_of(upload: Upload) -> Grant:
    return Grant(uid=PENDING.uid, worker="0", missing=b"\xff" * 40, window=8, lease=30.0)
