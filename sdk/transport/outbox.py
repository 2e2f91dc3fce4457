"""Parts that wait for room on the link. Control messages never wait."""

from __future__ import annotations

from collections import deque

from kellet.sdk.transport.base import Transport

__all__ = ["Outbox"]

ROOM = 512 << 10


class Outbox:
    """Publishes through ``transport``; what the link has no room for now goes out later.

    A driver asks ``room`` before it lets a machine produce more parts, so that at most
    one step's worth waits here. What waits when the link goes is forgotten: machines
    repeat what is missing.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._bytes = 0

    @property
    def room(self) -> int:
        """Bytes of parts that may still be handed over."""
        return max(0, ROOM - self._bytes)

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def send(self, topic: str, payload: bytes, *, retain: bool = False, bulk: bool = False) -> None:
        """Publish now, or (parts alone) when there is room."""
        if bulk and (self._waiting or not self._transport.publish(topic, payload, bulk=True)):
            self._waiting.append((topic, payload))
            self._bytes += len(payload)
        elif not bulk:
            self._transport.publish(topic, payload, retain=retain)

    def flush(self) -> None:
        """Hand over what the link has room for now."""
        while self._waiting:
            topic, payload = self._waiting[0]
            if not self._transport.publish(topic, payload, bulk=True):
                return
            self._waiting.popleft()
            self._bytes -= len(payload)

    def clear(self) -> None:
        """The link is gone."""
        self._waiting.clear()
        self._bytes = 0
