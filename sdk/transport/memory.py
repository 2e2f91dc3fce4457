"""A broker in this process, for simulation and for tests: no sockets, no threads, no clock.

Nothing is delivered inside ``publish``. What a publication causes is queued,
and ``pump`` delivers the queue in order, so that a run is the same every time::

    >>> from kellet.sdk.transport.memory import MemoryBroker, MemoryTransport
    >>> broker = MemoryBroker()
    >>> seen = []
    >>> server = MemoryTransport(broker, "server", seen.append, subscriptions=["d/+/req"])
    >>> device = MemoryTransport(broker, "pi", lambda event: None)
    >>> device.publish("d/pi/req", b"hello")
    True
    >>> seen
    []
    >>> broker.pump()
    3
    >>> seen[-1]
    Received(topic='d/pi/req', payload=b'hello')

(The three: ``Connected`` for each client, and the message.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from kellet.sdk.errors import UsageError
from kellet.sdk.transport.base import (
    Connected,
    Disconnected,
    Inbox,
    Received,
    Refused,
    TransportEvent,
    Will,
)
from kellet.sdk.transport.checks import (
    check_client,
    check_filter,
    check_payload,
    check_topic,
    too_large,
)
from kellet.sdk.transport.filters import LevelTree, is_wildcard

__all__ = ["MemoryBroker", "MemoryTransport"]


class MemoryBroker:
    """Routes publications among the ``MemoryTransport``s that were opened on it.

    It keeps what MQTT's broker keeps for clean sessions: retained messages,
    wills, and the subscriptions of clients whose link is up. For a client
    whose link is down nothing is kept, and what was on its way to it is lost.
    A client receives one copy, however many of its filters match. It belongs
    to one thread.
    """

    def __init__(self) -> None:
        self._clients: dict[str, MemoryTransport] = {}
        self._queue: deque[_Delivery] = deque()
        self._pending = 0
        self._exact: dict[str, dict[MemoryTransport, None]] = {}
        self._wild: LevelTree[dict[MemoryTransport, None]] = LevelTree()
        self._wild_groups: dict[str, dict[MemoryTransport, None]] = {}
        self._retained: LevelTree[Received] = LevelTree()
        self._pumping = False

    @property
    def pending(self) -> int:
        """Events that are queued and not yet delivered."""
        return self._pending

    def pump(self, limit: int | None = None) -> int:
        """Deliver queued events in order and return how many were delivered.

        What the inboxes publish meanwhile is queued behind and delivered too,
        until nothing is left or ``limit`` events were delivered. An inbox that
        raises stops the pump with its error; that event counts as delivered,
        and the next call goes on behind it. Raises ``UsageError`` when called
        from inside an inbox.
        """
        if self._pumping:
            raise UsageError(
                "pump was called from inside an inbox",
                why="events would overtake one another",
                repair="let the inbox publish, and the outer pump deliver",
            )
        self._pumping = True
        delivered = 0
        try:
            while self._queue and (limit is None or delivered < limit):
                client, session, event = self._queue.popleft()
                if session.void:
                    continue  # lost with its link, and already taken off the count
                session.pending -= 1
                self._pending -= 1
                delivered += 1
                client._inbox(event)
        finally:
            self._pumping = False
        return delivered

    def drop_link(self, client_id: str) -> None:
        """Cut a client's link, as a power cut does: its will is published.

        What was queued for it is lost, and it is told ``Disconnected``. No
        effect where the link is down already. Raises ``UsageError`` for a
        client that is not open here.
        """
        client = self._client(client_id)
        if client._up:
            self._cut(client, Disconnected("the link was dropped"))

    def restore_link(self, client_id: str) -> None:
        """Bring a dropped link back: subscriptions, ``Connected``, then retained messages.

        No effect where the link is up. Raises ``UsageError`` for a client that
        is not open here.
        """
        client = self._client(client_id)
        if not client._up:
            self._connect(client)

    def restart(self) -> None:
        """Stop and start as a broker without a disk does: everything it kept is gone.

        Retained messages, the queue and every session are lost, and no will is
        published. All clients are told ``Disconnected``; their links stay down
        until ``restore_link``.
        """
        self._retained = LevelTree()
        for client in self._clients.values():
            if client._up:
                self._disconnect(client)
                self._enqueue(client, Disconnected("the broker was restarted"))

    # What MemoryTransport calls.

    def _open(self, client: MemoryTransport) -> None:
        older = self._clients.get(client.client_id)
        if older is not None:
            # As in MQTT: the newer one takes over, and the older one's will is published.
            self._cut(older, Refused("another client with this id took over"))
        self._clients[client.client_id] = client
        self._connect(client)

    def _close(self, client: MemoryTransport) -> None:
        self._disconnect(client)
        if self._clients.get(client.client_id) is client:
            del self._clients[client.client_id]

    def _publish(self, topic: str, payload: bytes, retain: bool) -> None:
        message = Received(topic, payload)
        if retain and payload:
            self._retained.set(topic, message)
        elif retain:
            self._retained.remove(topic)
        receivers = self._exact.get(topic, {})
        groups = self._wild.filters_matching(topic)
        if groups:
            receivers = dict(receivers)  # one copy for each client
            for group in groups:
                receivers.update(group)
        for client in receivers:
            self._enqueue(client, message)

    def _subscribe(self, client: MemoryTransport, topic_filter: str) -> None:
        self._join(client, topic_filter)
        self._send_retained(client, [topic_filter])

    def _unsubscribe(self, client: MemoryTransport, topic_filter: str) -> None:
        groups = self._wild_groups if is_wildcard(topic_filter) else self._exact
        group = groups.get(topic_filter)
        if group is None:
            return
        group.pop(client, None)
        if not group:
            del groups[topic_filter]
            if groups is self._wild_groups:
                self._wild.remove(topic_filter)

    # The rest is the broker's own.

    def _client(self, client_id: str) -> MemoryTransport:
        client = self._clients.get(client_id)
        if client is None:
            raise UsageError(
                f"no client {client_id!r} on this broker",
                why="it was never opened, or was closed",
                repair="open a MemoryTransport with this id first",
            )
        return client

    def _connect(self, client: MemoryTransport) -> None:
        client._up = True
        for topic_filter in client._filters:
            self._join(client, topic_filter)
        self._enqueue(client, Connected(client._max_payload))
        self._send_retained(client, client._filters)

    def _cut(self, client: MemoryTransport, last_word: TransportEvent) -> None:
        was_up = client._up
        self._disconnect(client)
        self._enqueue(client, last_word)
        if was_up and client._will is not None:
            self._publish(client._will.topic, client._will.payload, retain=True)

    def _disconnect(self, client: MemoryTransport) -> None:
        """End a client's subscriptions and lose what is on its way to it."""
        if client._up:
            for topic_filter in client._filters:
                self._unsubscribe(client, topic_filter)
        client._up = False
        self._pending -= client._session.pending
        client._session.void = True
        client._session = _Session()

    def _join(self, client: MemoryTransport, topic_filter: str) -> None:
        if not is_wildcard(topic_filter):
            self._exact.setdefault(topic_filter, {})[client] = None
            return
        group = self._wild_groups.get(topic_filter)
        if group is None:
            group = self._wild_groups[topic_filter] = {}
            self._wild.set(topic_filter, group)
        group[client] = None

    def _send_retained(self, client: MemoryTransport, filters: Iterable[str]) -> None:
        sent: set[str] = set()
        for topic_filter in filters:
            for message in self._retained.topics_matching(topic_filter):
                if message.topic not in sent:
                    sent.add(message.topic)
                    self._enqueue(client, message)

    def _enqueue(self, client: MemoryTransport, event: TransportEvent) -> None:
        session = client._session
        session.pending += 1
        self._pending += 1
        self._queue.append((client, session, event))


class _Session:
    """What is queued for a client since its link last went down; void once it goes down again."""

    __slots__ = ("pending", "void")

    def __init__(self) -> None:
        self.pending = 0
        self.void = False


class MemoryTransport:
    """A client's link to a ``MemoryBroker``; the same contract as ``MqttTransport``.

    Parameters
    ----------
    broker:
        where it connects, at once: ``Connected`` is the first event queued.
    client_id:
        its name. A newer client with the same name takes over, and the older
        one is told ``Refused``.
    inbox:
        called with each event, from inside ``broker.pump`` alone.
    subscriptions:
        topic filters that are in force from the first moment.
    will:
        published, retained, when the link is dropped; not on ``close``.
    max_payload:
        bytes of the largest payload; None for no limit.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        client_id: str,
        inbox: Inbox,
        *,
        subscriptions: Iterable[str] = (),
        will: Will | None = None,
        max_payload: int | None = None,
    ) -> None:
        filters = check_client(client_id, subscriptions, will)
        self.client_id = client_id
        self._broker = broker
        self._inbox = inbox
        self._will = will
        self._max_payload = max_payload
        self._filters = dict.fromkeys(filters)  # a dict for its order
        self._session = _Session()
        self._up = False
        broker._open(self)

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, bulk: bool = False
    ) -> bool:
        """Queue ``payload`` for whoever is subscribed; False, and nothing kept, where down.

        ``bulk`` changes nothing here. Raises ``LinkError`` for a payload over
        ``max_payload``, ``UsageError`` for a topic that cannot be.
        """
        check_topic(topic)
        payload = check_payload(payload)
        if self._max_payload is not None and len(payload) > self._max_payload:
            raise too_large(topic, len(payload), self._max_payload)
        if not self._up:
            return False
        self._broker._publish(topic, payload, retain)
        return True

    def subscribe(self, topic_filter: str) -> None:
        """Receive what matches, retained messages first; again after each reconnection."""
        check_filter(topic_filter)
        self._filters[topic_filter] = None
        if self._up:
            self._broker._subscribe(self, topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        """Stop receiving what matches; what is queued already still arrives."""
        check_filter(topic_filter)
        self._filters.pop(topic_filter, None)
        if self._up:
            self._broker._unsubscribe(self, topic_filter)

    def close(self) -> None:
        """Leave without a will. Nothing more reaches the inbox. Idempotent."""
        self._broker._close(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_Delivery = tuple[MemoryTransport, _Session, TransportEvent]
