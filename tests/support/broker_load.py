"""A fleet's traffic through a real broker, without the learning: rounds of parts both ways.

Nothing is ever sent twice here, so one lost message stops a round for good.
"""

from __future__ import annotations

import queue
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from kellet.sdk.transport.base import Received, TransportEvent
from kellet.sdk.transport.mqtt import MqttTransport
from kellet.server.brokers import BrokerHandle

__all__ = ["FleetLoad", "slope"]

HEADER = 32


@dataclass
class _Device:
    name: str
    link: MqttTransport
    downloaded: set[int] = field(default_factory=set)
    to_send: list[int] = field(default_factory=list)
    arrived: set[int] = field(default_factory=set)  # parts of its update, at the server
    done: bool = False


class FleetLoad:
    """A server and devices in this process; ``round`` plays one round and raises where it stalls.

    Every device downloads ``down_parts`` that are published once for all, and
    sends an update of ``up_parts``. The server grants by bytes: no more than
    the broker's ``admission_bytes`` are on their way at once. ``stall`` makes
    the server's network thread sleep at the first part of a round, so that all
    that was admitted piles up in the broker.
    """

    def __init__(
        self, broker: BrokerHandle, *, devices: int, up_parts: int, down_parts: int
    ) -> None:
        self.most_admitted = 0
        self._broker = broker
        self._part_size = broker.part_size
        self._up_parts = up_parts
        self._down_parts = down_parts
        self._events: queue.SimpleQueue[tuple[str, Received]] = queue.SimpleQueue()
        self._stall = 0.0
        self._stack = ExitStack()
        self._server = self._link("server", ["f/d/+/req", "f/w/0/+/up"])
        self._devices = {
            name: _Device(name, self._link(name, ["f/round", "f/blob/+/+", f"f/d/{name}/ctl"]))
            for name in (f"d{number}" for number in range(devices))
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def round(self, number: int, *, stall: float = 0.0, patience: float = 15.0) -> None:
        """Play round ``number``; ``AssertionError`` where nothing arrives for ``patience`` s."""
        self._round = number
        self._stall = stall
        self._joined: set[str] = set()
        self._waiting: list[str] = []  # offers without a grant
        self._admitted = 0
        self._blob = list(range(self._down_parts))
        self._blob_open = False
        for device in self._devices.values():
            device.downloaded, device.to_send, device.arrived = set(), [], set()
            device.done = False
        self._say(self._server, "f/round", b"%d" % number, retain=True)
        heard = time.monotonic()
        while not all(device.done for device in self._devices.values()):
            backlog = self._send_parts()
            try:
                name, message = self._events.get(timeout=0.002 if backlog else 0.2)
            except queue.Empty:
                assert time.monotonic() - heard < patience, self._describe()
                continue
            heard = time.monotonic()
            if name == "server":
                self._server_hears(message)
            else:
                self._device_hears(self._devices[name], message)

    def _link(self, name: str, filters: list[str]) -> MqttTransport:
        def inbox(event: TransportEvent) -> None:
            if isinstance(event, Received):
                if self._stall and name == "server" and event.topic.endswith("/up"):
                    nap, self._stall = self._stall, 0.0
                    time.sleep(nap)
                self._events.put((name, event))

        link = MqttTransport(
            self._broker.url,
            name,
            inbox,
            subscriptions=filters,
            separate_bulk=self._broker.separate_bulk,
        )
        self._stack.callback(link.close)
        link.wait_connected()
        return link

    def _say(self, link: MqttTransport, topic: str, text: bytes, *, retain: bool = False) -> None:
        assert link.publish(topic, text, retain=retain)

    def _part(self, who: str, index: int) -> bytes:
        """A part of full size whose bytes say whose it is, of which round and where."""
        head = f"{who} {self._round} {index}".encode().ljust(HEADER)
        return head * (self._part_size // HEADER)

    def _send_parts(self) -> bool:
        """Publish what the links take now; True where something is left."""
        while self._blob_open and self._blob:
            topic = f"f/blob/{self._round:064x}/{self._blob[0]}"
            if not self._server.publish(topic, self._part("server", self._blob[0]), bulk=True):
                break
            self._blob.pop(0)
        for device in self._devices.values():
            while device.to_send:
                part = self._part(device.name, device.to_send[0])
                if not device.link.publish(f"f/w/0/{device.name}/up", part, bulk=True):
                    break
                device.to_send.pop(0)
        return bool(self._blob_open and self._blob) or any(
            device.to_send for device in self._devices.values()
        )

    def _server_hears(self, message: Received) -> None:
        _, channel, *rest = message.topic.split("/")
        if channel == "d":
            name = rest[0]
            if message.payload == b"join %d" % self._round:
                self._joined.add(name)
                self._blob_open = len(self._joined) == len(self._devices)
            elif message.payload == b"offer %d" % self._round:
                self._waiting.append(name)
                self._grant()
            return
        device = self._devices[rest[1]]
        index = int(message.payload[:HEADER].split()[2])
        assert message.payload == self._part(device.name, index), "a part was damaged"
        assert index not in device.arrived, "a part came twice"
        device.arrived.add(index)
        if len(device.arrived) == self._up_parts:
            self._admitted -= self._up_parts * self._part_size
            self._say(self._server, f"f/d/{device.name}/ctl", b"receipt %d" % self._round)
            self._grant()

    def _grant(self) -> None:
        size = self._up_parts * self._part_size
        while self._waiting and self._admitted + size <= self._broker.admission_bytes:
            self._admitted += size
            self.most_admitted = max(self.most_admitted, self._admitted)
            self._say(self._server, f"f/d/{self._waiting.pop(0)}/ctl", b"grant %d" % self._round)

    def _device_hears(self, device: _Device, message: Received) -> None:
        channel = message.topic.split("/")[1]
        if channel == "round":
            if message.payload == b"%d" % self._round:
                self._say(device.link, f"f/d/{device.name}/req", b"join %d" % self._round)
        elif channel == "blob":
            index = int(message.topic.rsplit("/", 1)[1])
            assert message.payload == self._part("server", index), "a part was damaged"
            device.downloaded.add(index)
            if len(device.downloaded) == self._down_parts:
                self._say(device.link, f"f/d/{device.name}/req", b"offer %d" % self._round)
        elif message.payload == b"grant %d" % self._round:
            device.to_send = list(range(self._up_parts))
        elif message.payload == b"receipt %d" % self._round:
            device.done = True

    def _describe(self) -> str:
        states = ", ".join(
            f"{d.name}: {len(d.downloaded)} down, {len(d.to_send)} to send, {len(d.arrived)} up"
            for d in self._devices.values()
        )
        return f"round {self._round} stalled; {len(self._joined)} joined; {states}"


def slope(values: list[float]) -> float:
    """The least-squares slope of ``values`` against their position."""
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    up = sum((at - middle) * (value - mean) for at, value in enumerate(values))
    return up / sum((at - middle) ** 2 for at in range(len(values)))
