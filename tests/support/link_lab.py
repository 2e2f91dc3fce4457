"""Clients of a broker for tests: each keeps its events, and waits for them with a deadline."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal, Self

from support.fault_proxy import FaultProxy

from kellet.sdk.transport.base import (
    Connected,
    Disconnected,
    Received,
    Refused,
    TransportEvent,
    Will,
)
from kellet.sdk.transport.memory import MemoryBroker, MemoryTransport
from kellet.sdk.transport.mqtt import MqttTransport, MqttTuning
from kellet.sdk.transport.url import parse_url

__all__ = ["Client", "Lab", "MemoryLab", "MqttLab", "open_client", "wait_until"]

QUICK = MqttTuning(backoff=(0.05, 0.5), connect_timeout=3.0)
PATIENCE = 10.0  # s


def wait_until(true: Callable[[], bool], timeout: float = PATIENCE) -> bool:
    """Poll ``true`` until it holds; False where it never did."""
    deadline = time.monotonic() + timeout
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Client:
    """A transport and everything that reached its inbox."""

    def __init__(self, pump: Callable[[], object]) -> None:
        self.events: list[TransportEvent] = []
        self.transport: Any = None
        self._pump = pump
        self._arrived = threading.Condition()

    def inbox(self, event: TransportEvent) -> None:
        with self._arrived:
            self.events.append(event)
            self._arrived.notify_all()

    def wait(self, true: Callable[[list[TransportEvent]], bool], timeout: float = PATIENCE) -> None:
        """Until ``true`` of the events so far; fails with them otherwise."""
        self._pump()
        with self._arrived:
            met = self._arrived.wait_for(lambda: true(self.events), timeout)
        assert met, f"not in {timeout} s; events: {self.events[-5:]}"

    def wait_connected(self, times: int = 1, timeout: float = PATIENCE) -> None:
        self.wait(lambda events: sum(isinstance(e, Connected) for e in events) >= times, timeout)

    def wait_disconnected(self, times: int = 1, timeout: float = PATIENCE) -> None:
        self.wait(lambda events: sum(isinstance(e, Disconnected) for e in events) >= times, timeout)

    def wait_refused(self, timeout: float = PATIENCE) -> Refused:
        self.wait(lambda events: any(isinstance(e, Refused) for e in events), timeout)
        return next(event for event in self.events if isinstance(event, Refused))

    def wait_payloads(self, count: int, timeout: float = PATIENCE) -> list[bytes]:
        """The payloads received, once there are at least ``count``."""
        self.wait(lambda events: sum(isinstance(e, Received) for e in events) >= count, timeout)
        return self.payloads

    @property
    def received(self) -> list[Received]:
        return [event for event in self.events if isinstance(event, Received)]

    @property
    def payloads(self) -> list[bytes]:
        return [event.payload for event in self.received]

    @property
    def kinds(self) -> list[str]:
        """The events' names but for Received, in order."""
        return [type(e).__name__ for e in self.events if not isinstance(e, Received)]


def open_client(url: str, name: str = "client", **options: Any) -> Client:
    """A client without a proxy, and not connected yet."""
    client = Client(lambda: None)
    client.transport = MqttTransport(url, name, client.inbox, **{"tuning": QUICK, **options})
    return client


class Lab:
    """Clients of one broker, under a topic prefix that no other test uses."""

    kind = ""

    def __init__(self) -> None:
        self.prefix = f"kellet/1/t{uuid.uuid4().hex[:10]}"
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stack.close()

    def topic(self, rest: str) -> str:
        return f"{self.prefix}/{rest}"

    def client(
        self,
        name: str,
        subscriptions: Iterable[str] = (),
        *,
        will: str | None = None,
        max_payload: int | None = None,
    ) -> Client:
        """A connected client; filters and the will's topic are under the prefix."""
        client = self.make(
            f"{self.prefix[-6:]}-{name}",
            [self.topic(each) for each in subscriptions],
            None if will is None else Will(self.topic(will), b"gone"),
            max_payload,
        )
        self.stack.callback(client.transport.close)
        client.wait_connected()
        return client

    def make(
        self, client_id: str, filters: list[str], will: Will | None, max_payload: int | None
    ) -> Client:
        raise NotImplementedError

    def cut(self, client: Client) -> None:
        """Cut a client's link and keep it down until ``mend``."""
        raise NotImplementedError

    def mend(self, client: Client) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        """Let what is under way arrive: for tests that something does not."""
        raise NotImplementedError


class MemoryLab(Lab):
    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.broker = MemoryBroker()

    def make(
        self, client_id: str, filters: list[str], will: Will | None, max_payload: int | None
    ) -> Client:
        client = Client(self.broker.pump)
        client.transport = MemoryTransport(
            self.broker,
            client_id,
            client.inbox,
            subscriptions=filters,
            will=will,
            max_payload=max_payload,
        )
        return client

    def cut(self, client: Client) -> None:
        self.broker.drop_link(client.transport.client_id)

    def mend(self, client: Client) -> None:
        self.broker.restore_link(client.transport.client_id)

    def settle(self) -> None:
        self.broker.pump()


class MqttLab(Lab):
    """Each client goes through a fault proxy of its own."""

    kind = "mqtt"

    def __init__(
        self, url: str, protocol: Literal["auto", "5", "3.1.1"] = "auto", **options: Any
    ) -> None:
        super().__init__()
        self.address = parse_url(url)
        self._protocol = protocol
        self._options = options
        self._proxies: dict[int, FaultProxy] = {}

    def make(
        self, client_id: str, filters: list[str], will: Will | None, max_payload: int | None
    ) -> Client:
        client = Client(lambda: None)
        proxy = self.stack.enter_context(FaultProxy(self.address.port, self.address.host))
        self._proxies[id(client)] = proxy
        client.transport = MqttTransport(
            proxy.url,
            client_id,
            client.inbox,
            subscriptions=filters,
            will=will,
            max_payload=max_payload,
            username=self.address.username,
            password=self.address.password,
            protocol=self._protocol,
            **{"tuning": QUICK, **self._options},
        )
        return client

    def proxy(self, client: Client) -> FaultProxy:
        return self._proxies[id(client)]

    def cut(self, client: Client) -> None:
        proxy = self.proxy(client)
        proxy.refuse = True
        proxy.cut()
        client.wait_disconnected()

    def mend(self, client: Client) -> None:
        self.proxy(client).refuse = False

    def settle(self) -> None:
        """A round trip of a fresh client, and a little more."""
        token = uuid.uuid4().hex[:8]
        visitor = self.client(f"visitor-{token}", [f"settle/{token}"])
        visitor.transport.publish(self.topic(f"settle/{token}"), b"x")
        visitor.wait_payloads(1)
        visitor.transport.close()
        time.sleep(0.1)
