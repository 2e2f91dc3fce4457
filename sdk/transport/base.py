"""What a transport is: two methods down, four events up.

A transport moves small payloads between clients of one publish/subscribe
broker. Nothing above it may rely on the broker's memory: a publication may be
lost, repeated or late, and a connection may go at any moment.

Events reach ``inbox``, a callable that must not block, from any thread, in
this order on each connection: ``Connected`` (after the subscriptions given at
opening are in force), then ``Received`` ..., then ``Disconnected``. The
transport reconnects by itself until ``close``; subscriptions made with
``subscribe`` are made again on each connection, before ``Connected``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

__all__ = [
    "Connected",
    "Disconnected",
    "Inbox",
    "Received",
    "Refused",
    "Transport",
    "TransportEvent",
    "Will",
]


@dataclass(frozen=True, slots=True)
class Connected:
    """The link is up and the subscriptions are in force.

    ``max_payload``: bytes of the largest payload this link carries, or None
    where neither the broker nor the configuration says.
    """

    max_payload: int | None


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The link is gone, or could not be made; the transport is trying again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The broker refuses this client for good (credentials, identity, protocol).

    The transport does not try again.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """A publication arrived."""

    topic: str
    payload: bytes


TransportEvent = Connected | Disconnected | Refused | Received
Inbox = Callable[[TransportEvent], None]


@dataclass(frozen=True, slots=True)
class Will:
    """What the broker publishes (retained) for a client that vanishes."""

    topic: str
    payload: bytes


class Transport(Protocol):
    """One client's link to a broker. Safe to call from any thread."""

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, bulk: bool = False
    ) -> bool:
        """Hand a payload to the link, at least once while the link lives.

        ``bulk`` marks parts of large transfers, which may travel on a
        connection of their own and so overtake or fall behind control
        messages. Returns False, and keeps nothing, where the link is down or
        its buffer is full. A payload larger than the link carries raises
        ``LinkError`` and the link stays up.
        """
        ...

    def subscribe(self, topic_filter: str) -> None:
        """Receive what matches, now and after each reconnection."""
        ...

    def unsubscribe(self, topic_filter: str) -> None:
        """Stop receiving what matches."""
        ...

    def close(self) -> None:
        """Take leave of the broker (no will is published) and stop. Idempotent."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
