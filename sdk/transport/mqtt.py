"""MQTT over paho-mqtt: version 5, with 3.1.1 as the fallback."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from kellet.sdk.errors import UsageError
from kellet.sdk.transport.base import Connected, Disconnected, Inbox, Refused, TransportEvent, Will
from kellet.sdk.transport.checks import (
    check_client,
    check_filter,
    check_payload,
    check_times,
    check_topic,
    too_large,
)
from kellet.sdk.transport.connection import Connection
from kellet.sdk.transport.settings import LinkSettings, Version, check_paho, tls_context
from kellet.sdk.transport.url import parse_url

__all__ = ["MqttTransport", "MqttTuning"]

log = logging.getLogger("kellet.transport")

_VERSIONS: dict[str, tuple[Version, ...]] = {
    "auto": ("5", "3.1.1"),
    "5": ("5",),
    "3.1.1": ("3.1.1",),
}


@dataclass(frozen=True, slots=True)
class MqttTuning:
    """What rarely needs changing.

    ``max_inflight``: publications on the wire at once, each way; the broker's
    Receive Maximum lowers it. ``max_inflight_bytes``: what may wait for the
    broker's acknowledgement on a connection; ``publish`` answers False beyond.
    ``bulk_window_bytes``: the same for parts alone, smaller, so that control
    messages never wait long behind them. ``connect_timeout``: s for the
    connection and the broker's answer. ``backoff``: s, the first wait between
    attempts and the longest.
    """

    max_inflight: int = 20
    max_inflight_bytes: int = 4 << 20
    bulk_window_bytes: int = 512 << 10
    connect_timeout: float = 10.0
    backoff: tuple[float, float] = (0.5, 30.0)

    def __post_init__(self) -> None:
        if not 1 <= self.max_inflight <= 65_535:
            raise UsageError("max_inflight is out of range", repair="give 1 to 65535")
        if self.max_inflight_bytes < 1 or self.bulk_window_bytes < 1:
            raise UsageError("a bound on bytes in flight below 1", repair="give a positive number")
        check_times(keepalive=1, connect_timeout=self.connect_timeout)
        if not 0 < self.backoff[0] <= self.backoff[1]:
            raise UsageError(
                "the backoff is not (first, longest)", repair="give seconds: 0 < first <= longest"
            )


class MqttTransport:
    """A client's link to an MQTT broker. Connects at once, in the background.

    Sessions are clean, publications QoS 1 both ways, the will retained. The
    inbox is called from network threads (one, or two with ``separate_bulk``)
    and should only enqueue; what it raises is logged. Nothing is queued while
    offline. The first attempt that fails is told as ``Disconnected``, once;
    ``wait_connected`` raises it.

    Parameters
    ----------
    url:
        ``mqtt://[user:password@]host[:port]``, or ``mqtts://`` for TLS.
    client_id:
        unique at the broker; a newer client with the same id fences this one
        off (``Refused``, where the broker says so: MQTT 5).
    inbox:
        called with each ``TransportEvent``.
    subscriptions:
        topic filters that are in force at each ``Connected``.
    will:
        published by the broker when this client vanishes, not on ``close``.
    username, password:
        override those in ``url``.
    ca_file, cert_file, key_file:
        PEM files for ``mqtts``: the authority that signed the broker's
        certificate (default: the system's), and this client's own.
    keepalive:
        s. One part must fit through the link within two of these.
    protocol:
        ``"auto"``, or ``"5"`` or ``"3.1.1"`` alone.
    separate_bulk:
        parts travel on a second connection, ``<client_id>-bulk``.
    max_payload:
        bytes, where the broker's limit is known and the broker may not say.

    Raises ``UsageError`` for arguments that cannot be, ``LinkError`` for a
    paho-mqtt older than 2.2.
    """

    def __init__(
        self,
        url: str,
        client_id: str,
        inbox: Inbox,
        *,
        subscriptions: Iterable[str] = (),
        will: Will | None = None,
        username: str | None = None,
        password: str | None = None,
        ca_file: Path | str | None = None,
        cert_file: Path | str | None = None,
        key_file: Path | str | None = None,
        keepalive: int = 30,
        protocol: Literal["auto", "5", "3.1.1"] = "auto",
        separate_bulk: bool = False,
        max_payload: int | None = None,
        tuning: MqttTuning | None = None,
    ) -> None:
        check_paho()
        address = parse_url(url)
        username = address.username if username is None else username
        password = address.password if password is None else password
        filters = check_client(client_id, subscriptions, will)
        if protocol not in _VERSIONS:
            raise UsageError(
                f"unknown protocol {protocol!r}", repair=f"one of {', '.join(_VERSIONS)}"
            )
        if password is not None and username is None:
            raise UsageError("a password without a user", repair="give username too")
        tuning = MqttTuning() if tuning is None else tuning
        check_times(keepalive=keepalive, connect_timeout=tuning.connect_timeout)
        paths = [None if file is None else Path(file) for file in (ca_file, cert_file, key_file)]
        settings = LinkSettings(
            url=address,
            client_id=client_id,
            username=username,
            password=password,
            tls=tls_context(address, *paths),
            will=will,
            keepalive=keepalive,
            versions=_VERSIONS[protocol],
            max_payload=max_payload,
            max_inflight=tuning.max_inflight,
            max_inflight_bytes=tuning.max_inflight_bytes,
            bulk_window_bytes=tuning.bulk_window_bytes,
            connect_timeout=tuning.connect_timeout,
            backoff=tuning.backoff,
        )
        self._inbox = inbox
        self._client_id = client_id
        self._max_payload = max_payload
        self._main = Connection(settings, filters, self._main_event)
        self._bulk: Connection | None = None
        self._together = 0  # the life of the main connection that the other one shares
        if separate_bulk:
            bulk = replace(settings, client_id=f"{client_id}-bulk", will=None)
            self._bulk = Connection(bulk, (), self._bulk_event)
        for connection in self._connections:
            connection.start()

    @property
    def unacknowledged(self) -> int:
        """Bytes that were published and that the broker has not acknowledged."""
        return sum(connection.unacknowledged for connection in self._connections)

    def wait_connected(
        self,
        timeout: float = 10.0,
        *,
        patient: bool = False,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Block until the link is up, for at most ``timeout`` s.

        Raises ``LinkError``, with the cause and the repair, at the first
        attempt that fails; with ``patient`` only once the time is up, or when
        the broker refuses for good. Returns soon after ``give_up`` is true. The
        transport goes on trying in any case.
        """
        deadline = time.monotonic() + timeout
        for connection in self._connections:
            connection.wait(deadline, patient=patient, give_up=give_up)

    def publish(
        self, topic: str, payload: bytes, *, retain: bool = False, bulk: bool = False
    ) -> bool:
        """Hand ``payload`` to the link: QoS 1, while the connection lives.

        Returns False, and keeps nothing, where the link is down or has its
        fill in flight. Raises ``LinkError`` for a payload larger than the link
        carries (the link stays up), ``UsageError`` for a topic that cannot be.
        """
        check_topic(topic)
        payload = check_payload(payload)
        if self._max_payload is not None and len(payload) > self._max_payload:
            raise too_large(topic, len(payload), self._max_payload)
        connection = self._bulk if bulk and self._bulk is not None else self._main
        return connection.publish(topic, payload, retain=retain, bulk=bulk)

    def subscribe(self, topic_filter: str) -> None:
        """Receive what matches, now and after each reconnection."""
        check_filter(topic_filter)
        self._main.subscribe(topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        """Stop receiving what matches."""
        check_filter(topic_filter)
        self._main.unsubscribe(topic_filter)

    def close(self) -> None:
        """Leave: what is in flight gets 2 s, then DISCONNECT, and no will. Idempotent.

        Nothing reaches the inbox afterwards. From inside the inbox it returns
        at once, and the thread ends by itself.
        """
        for connection in self._connections:
            connection.begin_close()
        for connection in self._connections:
            connection.end_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def _connections(self) -> list[Connection]:
        return [self._main] if self._bulk is None else [self._main, self._bulk]

    def _main_event(self, event: TransportEvent) -> None:
        self._deliver(event)
        if self._bulk is not None:
            if isinstance(event, Refused):
                self._bulk.begin_close()
            elif isinstance(event, Connected):
                self._bulk.hurry()

    def _deliver(self, event: TransportEvent) -> None:
        try:
            self._inbox(event)
        except Exception:
            log.exception("%s: the inbox failed on %s", self._client_id, type(event).__name__)

    def _bulk_event(self, event: TransportEvent) -> None:
        """The second connection is the link as well: where it is lost, the link is.

        Otherwise nobody would hear that parts were lost, but by waiting for an answer.
        """
        if isinstance(event, Connected):
            self._together = self._main.life
        elif isinstance(event, Disconnected):
            self._main.renew(self._together)
        elif isinstance(event, Refused):
            self._main.begin_close()
            self._deliver(Refused(f"the connection for parts: {event.reason}"))
