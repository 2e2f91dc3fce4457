"""Carries a simulation's messages, in one order whichever processes its clients are in."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from functools import partial

from kellet.sdk.protocol.effects import Publish, Subscribe, Tick, Unsubscribe
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.transport.base import TransportEvent
from kellet.sdk.transport.memory import MemoryBroker, MemoryTransport
from kellet.server.simulate.crew import ClientEvent, Engine

__all__ = ["Exchange"]


class Exchange:
    """The broker, the links of all clients, and the virtual clock.

    What reaches clients is kept until the aggregator is to be heard, or nothing else is left,
    and then given to the engine at once: that is what workers work on side by side. What the
    clients answer is published in the order of what they were given, as if each had answered
    before the next one was asked.
    """

    def __init__(
        self, topics: Topics, worker: str, serve: Callable[[TransportEvent], None]
    ) -> None:
        self.now = 0.0
        self._broker = MemoryBroker()
        self._topics = topics
        self._serve = serve
        self._engine: Engine
        self._links: dict[str, MemoryTransport] = {}
        self._waiting: list[tuple[str, ClientEvent]] = []
        self._wakes: dict[str, float | None] = {}
        self._busy: set[str] = set()
        self._pending: dict[str, bytes] = {}
        self._alarms: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self.server = MemoryTransport(
            self._broker, "aggregator", self._to_server, subscriptions=topics.server_filters(worker)
        )

    def connect(self, engine: Engine, devices: Iterable[str]) -> None:
        """Give each client of the engine a link."""
        self._engine = engine
        for device in devices:
            self._links[device] = MemoryTransport(
                self._broker,
                device,
                partial(self._to_client, device),
                subscriptions=self._topics.device_filters(device),
            )

    @property
    def idle(self) -> bool:
        """Whether no client is doing anything."""
        return not self._busy

    @property
    def pending(self) -> Iterable[bytes]:
        """The names of all updates that are not settled."""
        return self._pending.values()

    def pump(self) -> bool:
        """Deliver one message; False where there is none."""
        if self._broker.pump(1):
            return True
        if not self._waiting:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Let the clients answer what has reached them."""
        events, self._waiting = self._waiting, []
        if not events:
            return
        for (device, _), reply in zip(events, self._engine.take(events, self.now), strict=True):
            link = self._links[device]
            for action in reply.actions:
                match action:
                    case Publish():
                        link.publish(
                            action.topic, action.payload, retain=action.retain, bulk=action.bulk
                        )
                    case Subscribe():
                        link.subscribe(action.topic_filter)
                    case Unsubscribe():
                        link.unsubscribe(action.topic_filter)
            (self._busy.discard if reply.idle else self._busy.add)(device)
            if reply.pending is None:
                self._pending.pop(device, None)
            else:
                self._pending[device] = reply.pending
            self.alarm(reply.wake, device)

    def alarm(self, at: float | None, device: str = "") -> None:
        """A client, or (without a name) the aggregator, wants a tick at this time, or none."""
        if at == self._wakes.get(device):
            return
        self._wakes[device] = at
        if at is not None:
            heapq.heappush(self._alarms, (at, next(self._order), device))

    def pass_time(self) -> str | None:
        """Go to the next alarm that still holds; whose it is, None where there is none.

        A client is given its tick here; the aggregator's is left to the caller.
        """
        while self._alarms:
            at, _, device = heapq.heappop(self._alarms)
            if self._wakes.get(device) != at:
                continue  # it has been put off, or brought forward
            self._wakes[device] = None
            self.now = max(self.now, at)
            if device:
                self._to_client(device, Tick())
                self.flush()
            return device
        return None

    def _to_client(self, device: str, event: ClientEvent) -> None:
        self._waiting.append((device, event))

    def _to_server(self, event: TransportEvent) -> None:
        self.flush()
        self._serve(event)
