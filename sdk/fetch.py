"""Downloads: the blobs a round needs, asked for until they are here."""

from __future__ import annotations

from collections.abc import Sequence

from kellet.sdk.blobs import BlobCache
from kellet.sdk.errors import ProtocolError
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.assembly import Assembly
from kellet.sdk.protocol.effects import Effect, Publish, Subscribe, Unsubscribe
from kellet.sdk.protocol.messages import Blob, Get
from kellet.sdk.protocol.parts import decode_part
from kellet.sdk.protocol.topics import Address, Topics

__all__ = ["Fetch"]

_SHORTEST = 2.0
_LONGEST = 60.0
_SLOW = 16_000.0  # bytes/s; the first part is waited for as if the link had this rate


class Fetch:
    """The missing ones of ``blobs``; each is verified by its digest before it counts.

    Whoever asks gets all that is missing once more, and on a slow link the first answer
    may still be on its way. So the wait adapts: four times the smoothed time between
    two parts, doubled whenever it runs out.
    """

    def __init__(
        self,
        topics: Topics,
        device: str,
        who: tuple[bytes, bytes],
        *,
        blobs: Sequence[Blob],
        kept: Blob,
        part_size: int,
        cache: BlobCache,
    ) -> None:
        self._topics = topics
        self._device = device
        self._nonce, self._boot = who
        self._cache = cache
        self._kept = kept.sha256
        self._open = {
            blob.sha256: Assembly(blob.size, part_size, blob.sha256)
            for blob in blobs
            if blob.sha256 not in cache
        }
        self._wait = max(_SHORTEST, part_size / _SLOW)
        self._between: float | None = None  # smoothed time from part to part
        self._last: float | None = None  # when the last part came, or was first asked for
        self.wake = 0.0
        self.received = 0

    @property
    def done(self) -> bool:
        return not self._open

    def begin(self, now: float) -> list[Effect]:
        return [Subscribe(self._topics.blobs), *self.ask(now)]

    def ask(self, now: float) -> list[Effect]:
        """Name what is missing; called again whenever nothing came for a while."""
        self._last = now if self._last is None else self._last
        self.wake = now + self._wait
        self._wait = min(self._wait * 2, _LONGEST)
        return [
            Publish(
                self._topics.req(self._device),
                wire.pack(
                    Get(nonce=self._nonce, boot=self._boot, sha256=sha, missing=part.missing)
                ),
            )
            for sha, part in self._open.items()
        ]

    def part(self, address: Address, raw: bytes, now: float) -> list[Effect]:
        """A part arrived; a wrong one is dropped and asked for again in time."""
        assembly = self._open.get(address.sha256)
        if assembly is None:
            return []
        try:
            part = decode_part(raw)
            if part.uid != address.sha256[:16] or part.index != address.part:
                return []
            fresh = assembly.add(part.index, part.payload)
        except ProtocolError:
            return []
        self._came(now)
        if not fresh:
            return []
        self.received += len(raw)
        if not assembly.verified():
            return []
        self._cache.put(assembly.take(), keep=address.sha256 == self._kept)
        del self._open[address.sha256]
        return [] if self._open else self.cancel()

    def _came(self, now: float) -> None:
        """The link delivers: the next part has as long as the smoothed rhythm allows."""
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        self._between = passed if self._between is None else 0.8 * self._between + 0.2 * passed
        self._wait = min(max(_SHORTEST, 4 * self._between), _LONGEST)
        self.wake = now + self._wait

    def cancel(self) -> list[Effect]:
        """Stop listening."""
        return [Unsubscribe(self._topics.blobs)]
