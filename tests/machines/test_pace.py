"""On a link of any rate a transfer goes through once, and little of it twice. Virtual time."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from typing import Any

import pytest

from kellet.sdk.blobs import BlobCache
from kellet.sdk.fetch import Fetch
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Effect, Publish
from kellet.sdk.protocol.messages import Ack, Blob, FromDevice, Get, Grant, Offer
from kellet.sdk.protocol.parts import (
    bitmap,
    decode_part,
    encode_part,
    missing_in,
    part_count,
)
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.store import Pending
from kellet.sdk.upload import Upload

TOPICS = Topics("pace")
WHO = (bytes(16), bytes(8))
DELAY = 0.02  # s each way, beside the time that the bytes take


class Link:
    """One direction is first in, first out at ``rate`` bytes/s; the other has only the delay."""

    def __init__(self, rate: float) -> None:
        self.now = 0.0
        self.carried = 0
        self._rate = rate
        self._free = 0.0
        self._coming: list[tuple[float, int, Any]] = []

    def carry(self, size: int, what: Any) -> None:
        self.carried += size
        self._free = max(self._free, self.now) + size / self._rate
        self._put(self._free + DELAY, what)

    def answer(self, what: Any) -> None:
        self._put(self.now + DELAY, what)

    def next(self, wake: float) -> Any:
        """What arrives next; None where ``wake`` comes first."""
        if self._coming and self._coming[0][0] <= wake:
            self.now, _, what = heapq.heappop(self._coming)
            return what
        self.now = max(self.now, wake)
        return None

    def _put(self, at: float, what: Any) -> None:
        heapq.heappush(self._coming, (at, self.carried * 1000 + len(self._coming), what))


# A part goes through within two keepalives of 30 s; slower links need smaller parts.
@pytest.mark.parametrize(
    ("rate", "part_size"),
    [
        (rate, size << 10)
        for rate in (2e3, 5e3, 2e4, 1e5, 1e6)
        for size in (16, 64, 256)
        if (size << 10) / rate <= 60
    ],
)
def test_a_download(rate: float, part_size: int) -> None:
    data = bytes(3_000_000)
    sha256 = hashlib.sha256(data).digest()
    link = Link(rate)
    cache = BlobCache()
    blob = Blob(sha256, len(data))
    fetch = Fetch(TOPICS, "a", WHO, blobs=[blob], kept=blob, part_size=part_size, cache=cache)
    count = part_count(len(data), part_size)

    def do(effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Publish):
                link.answer(wire.unpack(effect.payload, FromDevice))

    do(fetch.begin(link.now))
    while not fetch.done:
        match link.next(fetch.wake):
            case None:
                do(fetch.ask(link.now))
            case Get() as get:
                for index in missing_in(get.missing, count):
                    part = data[index * part_size : (index + 1) * part_size]
                    link.carry(len(part), (index, encode_part(sha256[:16], index, part)))
            case (index, raw):
                address = TOPICS.parse(TOPICS.blob(sha256, index))
                assert address is not None
                do(fetch.part(address, raw, link.now))
    assert link.carried <= len(data) * (1 if rate >= 2e4 else 4)
    assert link.now < 1.02 * len(data) / rate


@pytest.mark.parametrize("rate", [2e3, 5e3, 2e4, 1e5, 1e6])
@pytest.mark.parametrize("part_size", [16 << 10, 64 << 10, 256 << 10])
def test_an_upload(rate: float, part_size: int) -> None:
    """Offers travel behind the parts, as on a single connection."""
    body = bytes(3_000_000)
    link = Link(rate)
    pending = Pending(b"u" * 16, 1, 1, 1, bytes(32), hashlib.sha256(body).digest(), body, None)
    upload = Upload(TOPICS, "a", WHO, pending, part_size)
    count = part_count(len(body), part_size)
    missing = set(range(count))
    fresh = 0

    def do(effects: Iterable[Effect]) -> None:
        for effect in effects:
            assert isinstance(effect, Publish)
            link.carry(len(effect.payload), effect.payload if effect.bulk else Offer)

    do(upload.offer(link.now))
    while missing:
        match link.next(upload.wake):
            case None:
                do(upload.offer(link.now))
            case Grant() as grant:
                do(upload.granted(grant, link.now))
            case Ack() as ack:
                do(upload.acknowledged(ack, link.now))
            case bytes() as raw:
                index = decode_part(raw).index
                fresh += index in missing
                if index not in missing or fresh == 4:
                    fresh = 0
                    link.answer(Ack(uid=pending.uid, missing=bitmap(missing - {index}, count)))
                missing.discard(index)
            case _:
                bits = bitmap(missing, count)
                link.answer(Grant(uid=pending.uid, worker="0", missing=bits, window=8, lease=30.0))
    # At most one window is sent twice, before the first acknowledgement tells the rhythm.
    assert link.carried < 1.01 * (len(body) + 8 * part_size)
