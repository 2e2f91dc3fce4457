"""Uploads: one pending update, offered until the ledger has answered."""

from __future__ import annotations

from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Effect, Publish
from kellet.sdk.protocol.limits import MAX_PARTS
from kellet.sdk.protocol.messages import Ack, Busy, Grant, Offer
from kellet.sdk.protocol.parts import encode_part, missing_in, part_count
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.store import Pending

__all__ = ["Upload"]

_SHORTEST = 2.0
_LONGEST = 60.0
_LEAST_PART = 4096  # bytes; smaller ones cost a link more than they save
_FEWER = 4  # times as small, or as large again


class Upload:
    """Offer, parts by bitmap, until a receipt.

    The timer adapts: four times the smoothed time between a part and its
    acknowledgement, doubled each time it runs out, so that a link of any speed
    finishes. A part in flight is not sent again before the timer says so.

    Parts adapt as well: the one that a broken link carries is lost, so where a link breaks
    before it has brought a single acknowledgement (of four parts), the next offer has parts
    of a quarter. ``part_size``: to begin with; ``next_part_size``: for the next update.
    """

    def __init__(
        self,
        topics: Topics,
        device: str,
        who: tuple[bytes, bytes],
        pending: Pending,
        part_size: int,
    ) -> None:
        self._topics = topics
        self._device = device
        self._nonce, self._boot = who
        self._body = pending.body
        self._sizes = [part_size]  # of the offers' parts, the last one's in force
        self._arrived = self._broken = False
        self.pending = pending
        self._worker = ""
        self._window = 1
        self._missing: list[int] = []
        self._sent_at: dict[int, float] = {}
        self._smoothed = _SHORTEST / 4
        self._patience = _SHORTEST
        self.wake = 0.0
        self.sent = 0

    @property
    def part_size(self) -> int:
        return self._sizes[-1]

    @property
    def next_part_size(self) -> int:
        """What this link is good for: more than this time if it never broke."""
        return self.part_size if self._broken else self.part_size * _FEWER

    def offer(self, now: float) -> list[Effect]:
        self.wake = now + self._patience
        self._patience = min(self._patience * 2, _LONGEST)
        pending = self.pending
        message = Offer(
            nonce=self._nonce,
            boot=self._boot,
            uid=pending.uid,
            round=pending.round,
            base=pending.base,
            seq=pending.seq,
            size=len(pending.body),
            part_size=self.part_size,
            sha256=pending.sha256,
        )
        return [Publish(self._topics.req(self._device), wire.pack(message))]

    def busy(self, message: Busy, now: float) -> None:
        self._patience = _SHORTEST
        self.wake = now + message.after

    def granted(self, message: Grant, now: float) -> list[Effect]:
        self._worker = message.worker
        self._window = message.window
        return self._go_on(message.missing, now)

    def acknowledged(self, message: Ack, now: float) -> list[Effect]:
        return self._go_on(message.missing, now) if self._worker else []

    def link_lost(self) -> None:
        """What was in flight is gone."""
        self._broken = True
        if self._sent_at and not self._arrived:
            self._cut_smaller()
        self.begin_anew()

    def begin_anew(self) -> None:
        """What was in flight may be gone, on the way or with the aggregator; a grant tells."""
        self._arrived = False
        self._sent_at.clear()
        self._worker = ""
        self._patience = _SHORTEST

    def _go_on(self, bits: bytes, now: float) -> list[Effect]:
        missing = list(missing_in(bits, part_count(len(self._body), self.part_size)))
        still = set(missing)
        arrived = [at for index, at in self._sent_at.items() if index not in still]
        if arrived:
            self._arrived = True
            sample = now - max(arrived)
            self._smoothed += 0.2 * (sample - self._smoothed)
            self._patience = max(_SHORTEST, 4 * self._smoothed)
        self._sent_at = {index: at for index, at in self._sent_at.items() if index in still}
        effects: list[Effect] = []
        stale = now - max(_SHORTEST, 4 * self._smoothed)
        in_flight = sum(at > stale for at in self._sent_at.values())
        for index in missing:
            if in_flight >= self._window:
                break
            if self._sent_at.get(index, stale) > stale:
                continue
            effects.append(self._part(index))
            self._sent_at[index] = now
            in_flight += 1
        self.wake = now + self._patience
        return effects

    def _part(self, index: int) -> Publish:
        start = index * self.part_size
        payload = encode_part(self.pending.uid, index, self._body[start : start + self.part_size])
        self.sent += len(payload)
        return Publish(self._topics.up(self._worker, self._device), payload, bulk=True)

    def _cut_smaller(self) -> None:
        """Offer smaller parts from now on.

        What has come whole stays: the aggregator counts bytes, not parts. A part of an earlier
        offer that comes late is told by its length, so no full part may be as long as the last
        one of an earlier offer.
        """
        size = len(self._body)
        least = max(_LEAST_PART, -(-size // MAX_PARTS))
        wanted = max(least, self.part_size // _FEWER)
        while wanted in [size % earlier for earlier in self._sizes]:
            wanted += 1
        if wanted < self.part_size:
            self._sizes.append(wanted)
