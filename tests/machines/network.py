"""A whole fleet of machines on virtual time, under a network as bad as the test wants it.

The machines, their stores and their files are the product's; the broker loses, repeats and
reorders, links break, and processes are killed: their files are copied as they lie, and
the copy is opened by the next process. After every event the invariant is held: C is the sum of
the committed controls.
"""

from __future__ import annotations

import functools
import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machines.invariant import Books
from machines.nodes import DeviceNode, Killed, Node, ServerNode
from numpy.typing import NDArray

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.plan import GradientSession, Plan
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.protocol.vectors import Codec
from kellet.server import FleetConfig

__all__ = ["CALM", "Fleet", "Killed", "Weather"]

PATIENCE = 3000.0  # seconds of virtual time after which a fleet is stuck


@functools.cache
def opened(plan: Plan, scheme: str) -> Any:
    """A session that all fleets share: they train one after the other."""
    return plan.session(scheme)


@dataclass(frozen=True)
class Weather:
    """What the network does to a message: lost, repeated, late (and so out of order).

    The second copy of a repeated message comes up to ``stale`` seconds later, on whatever
    connection there is by then, to whatever process listens.
    """

    lost: float = 0.0
    twice: float = 0.0
    slowest: float = 0.01
    stale: float = 0.01


CALM = Weather()


class Fleet:
    """An aggregator, devices, and the broker between them.

    ``data``: each device's rows. ``config``: fields of ``FleetConfig``; by default every
    device belongs to every round. ``training``: seconds that a device's training takes, or of some
    devices ``training_of``.
    ``schemes_of`` and ``codecs_of``: what each device can do, and how it likes to send delta_y.
    """

    server_kind: type[ServerNode] = ServerNode
    device_kind: type[DeviceNode] = DeviceNode

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        data: Mapping[str, NDArray[Any]],
        algorithm: FedAvg,
        *,
        session: GradientSession | None = None,
        schemes_of: Mapping[str, tuple[str, ...]] | None = None,
        codecs_of: Mapping[str, Codec] | None = None,
        seed: int = 0,
        weather: Weather = CALM,
        training: float = 1.0,
        training_of: Mapping[str, float] | None = None,
        **config: Any,
    ) -> None:
        everyone = {"target": len(data), "min_members": len(data), "quorum": len(data)}
        defaults = {"rounds": 3, "over_select": 1.0, "deadline": 600.0, "part_size": 1024}
        self.plan = plan
        self.schemes, self.codecs = schemes_of or {}, codecs_of or {}
        self.config = FleetConfig(algorithm=algorithm, **(everyone | defaults | config))
        self.sessions: dict[str, Any] = {
            name: session if session and name == "f32/1" else opened(plan, name)
            for name in self.config.schemes
        }
        self.topics = Topics(self.config.fleet)
        self.rng = random.Random(seed)
        self.weather = weather
        self.training = training
        self.training_of = training_of or {}
        self.now = 0.0
        self.retained: dict[str, bytes] = {}
        self.reports: list[tuple[str, str, dict[str, Any]]] = []
        self.books = Books(plan)
        self.written = True
        self._last_total: list[int] = []
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self.folder = folder
        self.server = self.server_kind(self, "server")
        self.devices = {name: self.device_kind(self, name, rows) for name, rows in data.items()}

    @property
    def nodes(self) -> list[Node]:
        return [self.server, *self.devices.values()]

    # -- time ----------------------------------------------------------------------

    @property
    def age(self) -> float:
        """The clock that survives restarts."""
        return self.now

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now + seconds, self._order, action))

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Until the rounds are over and every device is settled, or ``until`` says so."""
        end = self.now + PATIENCE
        while not (until() if until else self.over):
            assert self._heap, f"nothing will ever happen again at {self.now}"
            assert self.now < end, f"stuck: {self.where()}"
            at, _, action = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            action()

    def let_pass(self, seconds: float) -> None:
        """Run what happens in this time."""
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            at, _, action = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            action()
        self.now = end

    @property
    def over(self) -> bool:
        return (
            self.server.alive
            and self.server.machine.finished
            and all(d.alive and d.machine.doing == "nothing" for d in self.devices.values())
        )

    def where(self) -> str:
        doing = {n: (d.up, d.alive and d.machine.doing) for n, d in self.devices.items()}
        return f"round {self.server.alive and self.server.machine.round}, {doing}"

    def start(self) -> Fleet:
        for node in self.nodes:
            node.connect()
        return self

    def heal(self) -> None:
        """The end of the bad weather: everybody is back, and nothing is lost any more."""
        self.weather = CALM
        for node in self.nodes:
            node.restart_if_dead()
            node.cut()
            node.connect()
        self.run()
        self.let_pass(60)

    # -- the broker -------------------------------------------------------------------

    def publish(self, topic: str, payload: bytes, retain: bool) -> None:
        if retain:
            self.retained[topic] = payload
        for node in self.nodes:
            if node.hears(topic):
                self._send(node, topic, payload)

    def _send(self, node: Node, topic: str, payload: bytes) -> None:
        weather, luck = self.weather, self.rng.random()
        if luck >= weather.lost:
            delay = self.rng.uniform(0, weather.slowest)
            self.after(delay, node.inbox(topic, payload, node.session))
        if luck > 1 - weather.twice:
            self.after(self.rng.uniform(0, weather.stale), node.inbox(topic, payload))

    # -- what must hold ----------------------------------------------------------------

    def hold(self, after: str) -> None:
        """C is the sum of the committed controls. It can only change where something is written."""
        if not self.server.alive:
            return
        total = self.server.machine.control.integers()
        if self.written or total != self._last_total:
            self.written, self._last_total = False, total
            gap = self.books.gap(self.server.machine)
            assert gap == 0, f"{gap} grid steps apart after {after}"

    def check_end(self) -> None:
        """All that was counted was counted once, and is what the devices made."""
        self.books.check(self.server.machine, self.server.ledger)
        for device in self.devices.values():
            self.books.check_device(device.store, self.server.ledger)
            if self.server.machine.epoch == 1:
                assert device.store.residual(self.plan.id) == device.residual()
