"""Many devices in one process: ``python -m faults.processes.run_crowd JSON``.

Machines, stores, training and links are the product's; what is missing of a device is its
process and its disk. Several of them share a connection and a session, so that a thousand fit.
"""

from __future__ import annotations

import heapq
import os
import queue
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from support.child import serve, tell

from kellet.sdk import Plan
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import DeviceMachine, StartTraining, Trained
from kellet.sdk.given import Given
from kellet.sdk.plan import GradientSession
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Publish, Report, Subscribe, Tick, Unsubscribe
from kellet.sdk.protocol.messages import Busy, FromServer
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.store import Store
from kellet.sdk.trainer import Data, train
from kellet.sdk.transport.base import Disconnected, Received
from kellet.sdk.transport.mqtt import MqttTransport
from kellet.sdk.transport.outbox import Outbox
from kellet.sdk.uplink import Uplink
from kellet.server.sums import ExactSum


class Crowd:
    """``spec``: see ``main``."""

    def __init__(self, spec: dict[str, Any], stack: ExitStack) -> None:
        self.plan = Plan.open(spec["plan"])
        self.shapes = Shapes.of(self.plan.manifest.tensors)
        self.session = self.plan.session()
        assert isinstance(self.session, GradientSession)
        self.busy = self.finished = 0
        self.topics = Topics("kellet")
        self.events: queue.SimpleQueue[tuple[_Link, Any]] = queue.SimpleQueue()
        self.alarms: list[tuple[float, int, _Device, Any]] = []
        self.wanted = 0  # devices that fetch
        self._count = 0
        names, links = spec["devices"], spec["links"]
        self.links = [_Link(self, names[at::links], spec, stack) for at in range(links)]
        self.devices = [device for link in self.links for device in link.devices.values()]

    def alarm(self, at: float, device: _Device, event: Any) -> None:
        """Give ``event`` to the device at ``at``."""
        self._count += 1
        heapq.heappush(self.alarms, (at, self._count, device, event))

    def run(self) -> None:
        """Until the aggregator has finished and every device is settled."""
        while not self._over():
            pause = self.alarms[0][0] - time.monotonic() if self.alarms else 1.0
            if any(link.outbox.waiting for link in self.links):
                pause = min(pause, 0.02)
            try:
                link, event = self.events.get(timeout=min(max(pause, 0.0), 1.0))
                link.take(event)
            except queue.Empty:
                pass
            for link in self.links:
                link.outbox.flush()
            while self.alarms and self.alarms[0][0] <= time.monotonic():
                _, _, device, event = heapq.heappop(self.alarms)
                device.due(event)

    def _over(self) -> bool:
        if self.finished < len(self.devices):
            return False
        return all(d.machine.doing == "nothing" and not d.pending for d in self.devices)

    def total(self) -> ExactSum:
        """The sum of the devices' controls."""
        total = ExactSum(self.plan.n_train)
        for device in self.devices:
            total.add_grid(device.store.control(self.plan.n_train))
        return total


class _Link:
    """A connection, and the devices that speak over it."""

    def __init__(
        self, crowd: Crowd, names: list[str], spec: dict[str, Any], stack: ExitStack
    ) -> None:
        self.crowd = crowd
        folder = Path(spec["data"])
        luck = Random(f"pauses {names[0]}")
        pause = partial(luck.uniform, 0.0, spec.get("pause", 0.0))
        self.devices = {name: _Device(self, name, folder, pause) for name in names}
        filters = {f for name in names for f in crowd.topics.device_filters(name)}
        self.transport = MqttTransport(
            spec["broker"],
            f"crowd-{names[0]}",
            lambda event: crowd.events.put((self, event)),
            subscriptions=sorted(filters),
            separate_bulk=spec["separate_bulk"],
        )
        self.outbox = Outbox(self.transport)
        stack.callback(self.transport.close)

    def take(self, event: Any) -> None:
        """Give an event to those of the devices whom it is for."""
        if isinstance(event, Disconnected):
            self.outbox.clear()
        heard: Iterable[_Device] = self.devices.values()
        if isinstance(event, Received):
            address = self.crowd.topics.parse(event.topic)
            if address is not None and address.channel == "ctl":
                heard = [self.devices[address.device]]
                said = wire.unpack(event.payload, FromServer)
                self.crowd.busy += isinstance(said, Busy) and said.uid is not None
            elif address is not None and address.channel == "blob":
                heard = [d for d in self.crowd.devices if d.machine.doing == "fetching"]
        for device in heard:
            device.take(event)


class _Device:
    """The driver of one machine."""

    def __init__(self, link: _Link, name: str, folder: Path, pause: Any) -> None:
        self._link = link
        self._pause = pause
        self.name = name
        self.store = Store(name)
        self._data = folder / f"{name}.npz"
        self._cache = BlobCache()
        self._cache.put(link.crowd.plan.raw)
        self.machine = DeviceMachine(link.crowd.topics, self.store, self._cache, boot=os.urandom(8))
        self._wake: float | None = None
        self.settled = 0

    @property
    def pending(self) -> bool:
        return self.store.pending_uid() is not None

    def due(self, event: Any) -> None:
        """An alarm rings: the tick that is due, or a training that has ended."""
        if isinstance(event, Tick):
            wake = self.machine.wake
            self._wake = None
            if wake is not None and wake <= time.monotonic():
                event = Tick(self._link.outbox.room)
            else:
                self._alarm()
                return
        self.take(event)

    def take(self, event: Any) -> None:
        crowd = self._link.crowd
        for effect in self.machine.step(event, time.monotonic()):
            match effect:
                case Publish():
                    self._link.outbox.send(
                        effect.topic, effect.payload, retain=effect.retain, bulk=effect.bulk
                    )
                case Subscribe():
                    self._want(effect.topic_filter, 1)
                case Unsubscribe():
                    self._want(effect.topic_filter, -1)
                case StartTraining():
                    after = time.monotonic() + self._pause()
                    crowd.alarm(after, self, self._train(effect))
                case Report(kind="settled"):
                    self.settled += 1
                    tell(Report("settled", {"device": self.name, **effect.data}))
                case Report(kind="idle"):
                    crowd.finished += effect.data["reason"] == "finished"
                case Report(kind="fatal"):
                    raise AssertionError(effect.data)
        self._alarm()

    def _alarm(self) -> None:
        wake = self.machine.wake
        if wake is not None and (self._wake is None or wake < self._wake):
            self._wake = wake
            self._link.crowd.alarm(wake, self, Tick())

    def _want(self, topic_filter: str, more: int) -> None:
        """One connection hears the blobs for all: every device's own copy is not the point here."""
        crowd = self._link.crowd
        if topic_filter == crowd.topics.round:
            self._link.transport.unsubscribe(topic_filter)
            self._link.transport.subscribe(topic_filter)
            return
        crowd.wanted += more
        if more > 0 and crowd.wanted == 1:
            crowd.links[0].transport.subscribe(topic_filter)
        elif crowd.wanted == 0:
            crowd.links[0].transport.unsubscribe(topic_filter)

    def _train(self, effect: StartTraining) -> Trained:
        crowd, announced = self._link.crowd, effect.announced
        round_, shapes = announced.round, crowd.shapes
        given = Given.take(round_, self._cache, self.store)
        x, controls = given.decode(announced.algorithm, shapes, self.store.control)
        with np.load(self._data) as held:
            data = Data(*crowd.plan.check_data(held["x"], held["y"]))
        outcome = train(
            crowd.session,
            announced.algorithm,
            data,
            x=x,
            shapes=shapes,
            c=controls.c if controls else None,
            c_i=controls.c_i if controls else None,
            seed=round_.seed,
            device=self.name,
            round_=round_.round,
            uplink=Uplink.of(round_.codecs, "f32", None),
        )
        return Trained(announced.base, outcome)


def main(spec: dict[str, Any]) -> None:
    """``devices`` (names), ``links``, ``broker``, ``plan`` (a file), ``data`` (a folder).

    ``pause``: a training takes up to so many seconds longer, by chance. ``sum``: the file into
    which the sum of all c_i is written at the end.
    """
    spec |= spec.pop("options", {})
    with ExitStack() as stack:
        crowd = Crowd(spec, stack)
        tell(Report("ready"))
        crowd.run()
        Path(spec["sum"]).write_bytes(crowd.total().dump())
        tell(Report("over", {"busy": crowd.busy, "settled": sum(d.settled for d in crowd.devices)}))


if __name__ == "__main__":
    serve(main, {})
