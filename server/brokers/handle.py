"""A broker as its users see it: where it is, what it takes, and whether it works."""

from __future__ import annotations

import queue
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import psutil

from kellet.sdk.errors import LinkError, UsageError
from kellet.sdk.transport.base import Received, TransportEvent
from kellet.sdk.transport.mqtt import MqttTransport
from kellet.server.brokers.child import Child

__all__ = ["BrokerHandle"]

# Within what the aggregator's user may do under any rules. It is the same each time: the embedded
# broker keeps a log for every filter that it has ever seen.
PING_TOPIC = "kellet/1/ping/self"


@dataclass
class BrokerHandle:
    """An open broker; ``close``, or leave the ``with`` block, to stop it.

    A broker of our own is restarted, on the same port, when it dies, and dies
    when this process does. An external one is left alone.

    Attributes
    ----------
    kind:
        what it is.
    url:
        where this machine reaches it, without credentials.
    public_url:
        where devices reach it; the same, unless it listens to the network.
    url_v311:
        where MQTT 3.1.1 is spoken; the same, but for the embedded broker.
    username, password, ca_file:
        the aggregator's own credentials, and whom to trust, where needed.
    part_size:
        bytes of a part that suits this broker.
    separate_bulk:
        whether parts must travel on a second connection.
    admission_bytes:
        bytes of updates that may be on their way through it at once.
    max_payload:
        bytes of the largest payload; None where only CONNACK can say.
    """

    kind: Literal["embedded", "mosquitto", "external"]
    url: str
    public_url: str
    url_v311: str
    part_size: int
    admission_bytes: int
    separate_bulk: bool = False
    max_payload: int | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    _child: Child | None = field(default=None, repr=False)

    @property
    def pid(self) -> int | None:
        """The broker's process; None for an external one, or while it is being restarted."""
        return None if self._child is None else self._child.pid

    @property
    def starts(self) -> int:
        """How often the broker has been started here; 0 for an external one."""
        return 0 if self._child is None else self._child.starts

    def memory(self) -> int | None:
        """Resident bytes of the broker's process; None where there is none of ours."""
        pid = self.pid
        if pid is None:
            return None
        try:
            resident: int = psutil.Process(pid).memory_info().rss
        except psutil.NoSuchProcess:
            return None
        return resident

    def alive(self) -> bool:
        """Whether the process runs; an external broker must answer a ping within 5 s."""
        return self.healthy(5.0) if self._child is None else self._child.alive()

    def healthy(self, timeout: float = 5.0) -> bool:
        """Whether a message goes through: connect, subscribe, publish to oneself, receive."""
        try:
            self.ping(timeout)
        except LinkError:
            return False
        return True

    def ping(self, timeout: float = 5.0) -> float:
        """As ``healthy``, but returns the seconds it took, and raises ``LinkError`` otherwise."""
        began = time.monotonic()
        token = secrets.token_hex(8)
        events: queue.SimpleQueue[TransportEvent] = queue.SimpleQueue()
        with MqttTransport(
            self.url,
            f"kellet-ping-{token}",
            events.put,
            subscriptions=[PING_TOPIC],
            username=self.username,
            password=self.password,
            ca_file=self.ca_file,
        ) as link:
            link.wait_connected(timeout)
            link.publish(PING_TOPIC, token.encode())
            while (remaining := began + timeout - time.monotonic()) > 0:
                try:
                    event = events.get(timeout=remaining)
                except queue.Empty:
                    break
                if isinstance(event, Received) and event.payload == token.encode():
                    return time.monotonic() - began
        raise LinkError(
            f"the broker at {self.url} does not deliver",
            why=f"a message to oneself did not come back within {timeout:g} s",
            repair="check its load, its log, and its access rules for kellet/1/#",
        )

    def restart(self) -> None:
        """Kill the broker's process and wait until its successor listens on the same port.

        Raises ``UsageError`` for an external broker, ``LinkError`` where it
        does not come up.
        """
        if self._child is None:
            raise UsageError(
                f"cannot restart {self.url}",
                why="it is not ours",
                repair="restart it where it runs",
            )
        self._child.restart()

    def close(self) -> None:
        """Stop the broker, unless it is external. Idempotent."""
        if self._child is not None:
            self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
