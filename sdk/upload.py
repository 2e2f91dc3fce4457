"""Uploads: one pending update, offered until the ledger has answered."""

from __future__ import annotations

from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Effect, Publish
from kellet.sdk.protocol.messages import Ack, Busy, Grant, Offer
from kellet.sdk.protocol.parts import encode_part, missing_in, part_count
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.store import Pending

__all__ = ["Upload"]

_SHORTEST = 2.0
_LONGEST = 60.0


class Upload:
    """Offer, parts by bitmap, until a receipt.

    The timer adapts: four times the smoothed time between a part and its
    acknowledgement, doubled each time it runs out, so that a link of any speed
    finishes. A part in flight is not sent again before the timer says so.
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
        self._part_size = part_size
        self._count = part_count(len(pending.body), part_size)
        self.pending = pending
        self._worker = ""
        self._window = 1
        self._missing: list[int] = []
        self._sent_at: dict[int, float] = {}
        self._smoothed = _SHORTEST / 4
        self._patience = _SHORTEST
        self.wake = 0.0
        self.sent = 0

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
            part_size=self._part_size,
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
        """What was in flight may be gone, on the way or with the aggregator; a grant tells."""
        self._sent_at.clear()
        self._worker = ""
        self._patience = _SHORTEST

    def _go_on(self, bits: bytes, now: float) -> list[Effect]:
        missing = list(missing_in(bits, self._count))
        still = set(missing)
        arrived = [at for index, at in self._sent_at.items() if index not in still]
        if arrived:
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
        start = index * self._part_size
        payload = encode_part(self.pending.uid, index, self._body[start : start + self._part_size])
        self.sent += len(payload)
        return Publish(self._topics.up(self._worker, self._device), payload, bulk=True)
