"""Serving blobs: what several devices miss is published once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kellet.sdk.durable import ReadInParts
from kellet.sdk.protocol.effects import Effect, Publish
from kellet.sdk.protocol.parts import encode_part, missing_in, part_count
from kellet.sdk.protocol.topics import Topics

__all__ = ["Downloads"]

# Requests that come close together are answered together; this long is waited for more.
GATHER = 0.03


@dataclass
class _Wanted:
    data: ReadInParts
    part_size: int
    at: float
    parts: dict[int, set[str]] = field(default_factory=dict)


class Downloads:
    """Parts on their way out, as fast as the link takes them."""

    def __init__(self, topics: Topics, find: Callable[[bytes], ReadInParts | None]) -> None:
        self._topics = topics
        self._find = find
        self._wanted: dict[bytes, _Wanted] = {}
        self.delivered = 0

    @property
    def wake(self) -> float | None:
        return min((w.at for w in self._wanted.values()), default=None)

    def get(self, device: str, sha256: bytes, missing: bytes, part_size: int, now: float) -> None:
        """A device misses these parts of a blob; unknown blobs are not answered."""
        data = self._find(sha256)
        if data is None:
            return
        wanted = self._wanted.setdefault(sha256, _Wanted(data, part_size, now + GATHER))
        for index in missing_in(missing, part_count(len(data), wanted.part_size)):
            wanted.parts.setdefault(index, set()).add(device)

    def tick(self, room: int, now: float) -> list[Effect]:
        """Publish what has been gathered, ``room`` bytes of it at most."""
        effects: list[Effect] = []
        for sha256, wanted in list(self._wanted.items()):
            if now < wanted.at:
                continue
            if self._find(sha256) is None:
                del self._wanted[sha256]  # its round is over, and who asked for it starts anew
                continue
            for index in sorted(wanted.parts):
                if room <= 0:
                    wanted.at = now + GATHER
                    break
                devices = wanted.parts.pop(index)
                start = index * wanted.part_size
                data = wanted.data[start : start + wanted.part_size]
                payload = encode_part(sha256[:16], index, data)
                room -= len(payload)
                self.delivered += len(payload) * len(devices)
                effects.append(Publish(self._topics.blob(sha256, index), payload, bulk=True))
            if not wanted.parts:
                del self._wanted[sha256]
        return effects
