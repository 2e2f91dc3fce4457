"""One connection to a broker, from CONNECT to its end.

paho-mqtt keeps unacknowledged publications for the next connection, and even
those that its ``publish`` reported as failed. So each connection here is a
paho client of its own: when the connection ends, the client is dropped with
all that it held, and nothing is ever queued while offline.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable

import paho.mqtt.client as paho

from kellet.sdk.transport.base import Connected, Received, TransportEvent
from kellet.sdk.transport.checks import too_large
from kellet.sdk.transport.paho_client import (
    Connack,
    Goodbye,
    Note,
    Puback,
    Suback,
    acknowledge_at_once,
    connect,
    make_client,
)
from kellet.sdk.transport.settings import Failure, LinkSettings, Version, explain

__all__ = ["NARROWER", "OTHER_VERSION", "Session"]

log = logging.getLogger("kellet.transport")

LARGEST_PACKET = 268_435_455  # MQTT's own limit
PACKET_COST = 10  # bytes of a PUBLISH beside topic and payload, at most
DRAIN = 1.0  # s for the broker to close after our DISCONNECT
TOPIC_ALLOWANCE = 256  # what Connected.max_payload leaves for the topic
MESSAGE_COST = 512  # bytes that a publication in flight takes beside topic and payload, about

# CONNACK reasons after which another attempt would end the same way (MQTT 5, section 3.2.2.2).
_FINAL_CONNACK = {0x81, 0x82, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x90, 0x95, 0x99, 0x9A, 0x9B}
_UNSUPPORTED_VERSION = 0x84
_KEEPALIVE = 0x8D
_SESSION_TAKEN_OVER = 0x8E

LOST = "the connection was lost"

# Endings after which it is worth trying again at once, otherwise.
OTHER_VERSION = Failure(
    "the broker does not speak this version of MQTT",
    "use a broker that speaks MQTT 5 or 3.1.1, or leave protocol at 'auto'",
    final=True,
)
NARROWER = Failure("the broker allows fewer publications in flight", "")


class Session:
    """A single connection: ``open``, then ``turn`` until ``ending`` is set, then ``discard``.

    ``open``, ``turn`` and ``discard`` belong to the network thread; the other
    methods may be called from any.
    """

    def __init__(self, settings: LinkSettings, version: Version, window: int) -> None:
        self.ending: Failure | None = None
        self.window = window
        self.max_payload = settings.max_payload
        self.filters: frozenset[str] = frozenset()  # those that were asked for at opening
        self.unanswered = False  # it was closed before any CONNACK
        self.up_since: float | None = None
        self._settings = settings
        self._version = version
        self._max_packet = LARGEST_PACKET
        self._notes: deque[Note] = deque()
        self._client = make_client(settings, version, window, self._notes)
        self._early: list[Received] = []  # came before SUBACK; Connected goes first
        self._answered = False
        self._opening_mid: int | None = None
        self._complained = False
        self._lock = threading.Lock()  # over what follows; never taken inside paho's callbacks
        self._second_end: socket.socket | None = None  # of the open connection; see _drain
        self._up = False
        self._leaving = False
        self._in_flight: dict[int, tuple[int, bool]] = {}
        self._bytes = 0
        self._bulk_bytes = 0

    # The network thread.

    def open(self, filters: Iterable[str]) -> None:
        """Connect; ``filters`` are subscribed to as soon as the broker has answered."""
        self.filters = frozenset(filters)
        self._deadline = time.monotonic() + self._settings.connect_timeout
        try:
            connect(self._client, self._settings, self._version)
            with self._lock:
                self._second_end = _duplicate(self._client.socket())
        except (OSError, ValueError) as error:  # ValueError: a host name that IDNA cannot encode
            self.ending = explain(error, self._settings.url)

    def turn(self, timeout: float) -> list[TransportEvent]:
        """Wait up to ``timeout`` s for the network and return what happened, in order."""
        acknowledge_at_once(self._client)
        try:
            status = self._client.loop(timeout)
        except Exception as error:
            # Bytes that are not MQTT surface from paho as errors of many kinds. Whatever comes
            # over the wire must not end the thread; it ends this connection, with the reason.
            log.debug("%s: the network loop failed", self._settings.client_id, exc_info=True)
            self.ending = Failure(
                f"what it sends is not MQTT ({error})", "check that the port is an MQTT broker's"
            )
            return []
        events: list[TransportEvent] = []
        while self._notes and self.ending is None:
            self._digest(self._notes.popleft(), events)
        if self.ending is None and status != paho.MQTT_ERR_SUCCESS:
            self.ending = self._lost(LOST)
        if self.ending is None and self.up_since is None and time.monotonic() > self._deadline:
            self.ending = Failure(
                "it takes the connection and does not answer as a broker should",
                "check that the port is an MQTT broker's, and whether it wants mqtts://",
            )
        return events

    def discard(self) -> None:
        """Close the socket and forget what was in flight."""
        with self._lock:
            self._up = False
            self._in_flight.clear()
            self._bytes = self._bulk_bytes = 0
        connection = self._client.socket()
        if connection is not None:
            connection.close()
        if self._second_end is not None:
            if self._leaving:
                _drain(self._second_end)
            self._second_end.close()

    # Any thread.

    @property
    def unacknowledged(self) -> int:
        """Bytes that were published and not acknowledged yet, overhead included."""
        return self._bytes

    def publish(self, topic: str, payload: bytes, *, retain: bool, bulk: bool) -> bool:
        """As ``Transport.publish``; ``topic`` is checked already."""
        topic_size = len(topic.encode())
        limit = self._max_packet - PACKET_COST - topic_size
        if len(payload) > limit:
            raise too_large(topic, len(payload), limit)
        size = len(payload) + topic_size + MESSAGE_COST
        with self._lock:
            if not self._up or not self._has_room(size, bulk):
                return False
            info = self._client.publish(topic, payload, qos=1, retain=retain)
            if info.rc != paho.MQTT_ERR_SUCCESS:
                return False  # paho may keep it all the same; it goes with this client
            self._in_flight[info.mid] = (size, bulk)
            self._bytes += size
            if bulk:
                self._bulk_bytes += size
        return True

    def subscribe(self, topic_filter: str) -> None:
        """Ask for ``topic_filter`` too, if the connection is up."""
        with self._lock:
            if self._up:
                self._client.subscribe(topic_filter, qos=1)

    def unsubscribe(self, topic_filter: str) -> None:
        """Ask for ``topic_filter`` no longer, if the connection is up."""
        with self._lock:
            if self._up:
                self._client.unsubscribe(topic_filter)

    def leave(self) -> None:
        """Send DISCONNECT, so that no will is published; ``turn`` carries it out.

        No effect before ``open`` is done: a CONNECT may be on its way by then,
        and the DISCONNECT has to follow it.
        """
        with self._lock:
            if self._second_end is not None and not self._leaving:
                self._leaving = True
                self._up = False
                self._client.disconnect()

    # Inside.

    def _digest(self, note: Note, events: list[TransportEvent]) -> None:
        match note:
            case Received() if self.up_since is not None:
                events.append(note)
            case Received():
                self._early.append(note)
            case Puback():
                self._acknowledged(note)
            case Connack():
                self._admitted(note, events)
            case Suback():
                self._subscribed(note, events)
            case Goodbye(code=code, from_broker=True) if code == _SESSION_TAKEN_OVER:
                self.ending = Failure(
                    f"another client with the id {self._settings.client_id!r} took over",
                    "give every client an id of its own",
                    final=True,
                )
            case Goodbye(from_broker=True):
                self.ending = self._lost(f"the broker closed the connection: {note.text.lower()}")
            case Goodbye(code=code):
                self.ending = self._lost("no sign of life" if code == _KEEPALIVE else LOST)

    def _admitted(self, note: Connack, events: list[TransportEvent]) -> None:
        self._answered = True
        if note.code == _UNSUPPORTED_VERSION:
            self.ending = OTHER_VERSION
        elif note.code >= 0x80:
            self.ending = Failure(
                note.text.lower(),
                "check user, password, and the broker's access rules for this client",
                final=note.code in _FINAL_CONNACK,
            )
        elif self._suits(note):
            if self.filters:
                _, self._opening_mid = self._client.subscribe(
                    [(topic_filter, 1) for topic_filter in sorted(self.filters)]
                )
            else:
                self._go_up(events)

    def _suits(self, note: Connack) -> bool:
        """Take over the limits that the broker states; False where they end the connection."""
        offer = note.properties
        if getattr(offer, "MaximumQoS", 2) < 1 or not getattr(offer, "RetainAvailable", 1):
            self.ending = Failure(
                "the broker offers no QoS 1, or no retained messages",
                "allow both in its configuration, or use another broker",
                final=True,
            )
            return False
        allowed = getattr(offer, "ReceiveMaximum", self.window)
        if allowed < self.window:
            # paho's window cannot change on an open connection; the next one starts with this.
            self.window = max(1, allowed)
            self.ending = NARROWER
            return False
        packet = getattr(offer, "MaximumPacketSize", None)
        if packet is not None:
            self._max_packet = min(LARGEST_PACKET, packet)
            payload = max(0, self._max_packet - PACKET_COST - TOPIC_ALLOWANCE)
            own = self._settings.max_payload
            self.max_payload = payload if own is None else min(own, payload)
        return True

    def _subscribed(self, note: Suback, events: list[TransportEvent]) -> None:
        if any(code >= 0x80 for code in note.codes):
            what = ", ".join(sorted(self.filters)) if note.mid == self._opening_mid else "a filter"
            self.ending = Failure(
                f"the broker does not let it subscribe to {what}",
                "check the broker's access rules for this client",
                final=True,
            )
        elif note.mid == self._opening_mid:
            self._go_up(events)

    def _go_up(self, events: list[TransportEvent]) -> None:
        with self._lock:
            self._up = not self._leaving
        self.up_since = time.monotonic()
        events.append(Connected(self.max_payload))
        events.extend(self._early)
        self._early.clear()

    def _acknowledged(self, note: Puback) -> None:
        with self._lock:
            size, bulk = self._in_flight.pop(note.mid, (0, False))
            self._bytes -= size
            if bulk:
                self._bulk_bytes -= size
        if note.code >= 0x80 and not self._complained:
            self._complained = True
            log.warning(
                "%s: the broker refuses a publication: %s - check its access rules",
                self._settings.client_id,
                note.text.lower(),
            )

    def _lost(self, text: str) -> Failure:
        if self.up_since is not None:
            return Failure(text, "check the network and the broker")
        self.unanswered = not self._answered
        return Failure(
            f"it did not admit the client ({text})",
            "check that the port is an MQTT broker's, and whether it wants mqtts://",
        )

    def _has_room(self, size: int, bulk: bool) -> bool:
        """Whether ``size`` more bytes may be in flight; a payload always may go alone."""
        settings = self._settings
        if bulk and self._bulk_bytes and self._bulk_bytes + size > settings.bulk_window_bytes:
            return False
        return not self._bytes or self._bytes + size <= settings.max_inflight_bytes


def _duplicate(connection: paho.SocketLike | None) -> socket.socket | None:
    return None if connection is None else socket.socket(fileno=os.dup(connection.fileno()))


def _drain(connection: socket.socket) -> None:
    """Read, to no purpose, until the broker closes.

    paho closes its socket as soon as DISCONNECT is written. If anything is
    unread by then, the kernel resets the connection, the broker may never see
    the DISCONNECT, and publishes the will of a client that took its leave.
    """
    deadline = time.monotonic() + DRAIN
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        while (remaining := deadline - time.monotonic()) > 0:
            connection.settimeout(remaining)
            if not connection.recv(1 << 16):
                return
