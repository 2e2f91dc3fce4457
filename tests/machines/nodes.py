"""The processes of a virtual fleet: the product's machines over real files, and how they die."""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import DeviceMachine, StartTraining, Trained, TrainingStopped
from kellet.sdk.protocol.effects import Publish, Report, Subscribe, Tick, Unsubscribe
from kellet.sdk.protocol.vectors import Shapes, decode_vector
from kellet.sdk.store import Store
from kellet.sdk.trainer import Data, TrainingFailed, train
from kellet.sdk.transport.base import Connected, Disconnected, Received
from kellet.sdk.uplink import Uplink
from kellet.server.aggregator import AggregatorMachine
from kellet.server.blobs import Blobs
from kellet.server.ledger import Ledger
from kellet.server.uploads import Spool

if TYPE_CHECKING:
    from machines.network import Fleet

__all__ = ["DeviceNode", "Killed", "Node", "ServerNode"]

LEDGER_WRITES = (
    "found",
    "new_epoch",
    "open_round",
    "close_round",
    "annotate",
    "write_member",
    "write_update",
)
STORE_WRITES = ("adopt", "save_pending", "settle", "new_epoch", "enrol_anew")


class Killed(BaseException):
    """Kill -9: nothing of the process runs after it."""


class Node:
    """A process with a link and a directory. ``life`` counts its processes."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet = fleet
        self.name = name
        self.life = 0
        self.up = False
        self.alive = True
        self.session = 0
        self.filters: dict[str, None] = {}
        self.machine: Any = None
        self.steps = self.writes = 0
        self.written = True
        # When to be killed: (where, count). "write" and "written" are before and after the
        # n-th write to the disk, a method's name is after its first one, "silent" and "said"
        # are after the n-th event, before and after its effects are carried out.
        self.die_at: tuple[str, int] | None = None
        self.folder = fleet.folder / f"{name}-0"
        self.open()

    def open(self) -> None:
        """Start a process over the directory."""
        raise NotImplementedError

    def refresh(self) -> None:
        """Tell the books what is in the store now, if it has changed."""

    def watch(self) -> None:
        """Notice each write to what must last, and die at one where that is asked for."""
        for store, names in self.durable():
            for name in names:
                setattr(store, name, self._watched(getattr(store, name)))

    def _watched(self, write: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(write)
        def watched(*args: Any, **options: Any) -> Any:
            self.writes += 1
            self._perhaps_die("write", self.writes)
            done = write(*args, **options)
            self.written = self.fleet.written = True
            self._perhaps_die("written", self.writes)
            self._perhaps_die(write.__name__, 1)
            return done

        return watched

    def _perhaps_die(self, when: str, count: int) -> None:
        if self.die_at == (when, count):
            self.die_at = None
            raise Killed

    def durable(self) -> list[tuple[Any, tuple[str, ...]]]:
        """The stores, and their methods that write."""
        raise NotImplementedError

    def connect(self) -> None:
        if self.up or not self.alive:
            return
        self.up = True
        self.session += 1
        self.take(Connected(None))
        for topic_filter in list(self.filters):
            self.hear_retained(topic_filter)

    def hear_retained(self, topic_filter: str) -> None:
        """What the broker answers a subscription with."""
        for topic, payload in self.fleet.retained.items():
            if self.up and matches(topic_filter, topic):
                self.fleet.after(0.001, self.inbox(topic, payload, self.session))

    def cut(self) -> None:
        if self.up:
            self.up = False
            self.session += 1
            self.take(Disconnected("cut"))

    def kill(self) -> None:
        """Kill -9: what is on the disk stays as it is, in a copy for the next process."""
        if not self.alive:
            return
        self.refresh()
        self.alive = self.up = False
        self.session += 1
        self.life += 1
        copy = self.fleet.folder / f"{self.name}-{self.life}"
        if self.folder.exists():
            shutil.copytree(self.folder, copy)
        self.folder = copy

    def restart(self) -> None:
        self.alive = True
        self.open()
        self.connect()

    def restart_if_dead(self) -> None:
        if not self.alive:
            self.restart()

    def hears(self, topic: str) -> bool:
        return self.up and any(matches(f, topic) for f in self.filters)

    def inbox(self, topic: str, payload: bytes, session: int | None = None) -> Callable[[], None]:
        """Deliver a message, if the node still hears it (on this connection)."""

        def deliver() -> None:
            if session in (None, self.session) and self.hears(topic):
                self.take(Received(topic, payload))

        return deliver

    def take(self, event: Any) -> None:
        """Step the machine, carry out the effects, hold the invariant."""
        self.steps += 1
        try:
            effects = self.machine.step(event, self.fleet.now)
            self._perhaps_die("silent", self.steps)
            self.refresh()
            self.fleet.hold(f"{self.name} took {event}")
            for effect in effects:
                self.carry_out(effect)
            self._perhaps_die("said", self.steps)
        except Killed:
            self.kill()
            self.fleet.after(1.0, self.restart_if_dead)
            return
        self.alarm()

    def alarm(self) -> None:
        wake, life = self.machine.wake, self.life
        if wake is None or wake == float("inf"):
            return

        def ring() -> None:
            due = self.alive and self.life == life and self.machine.wake is not None
            if due and self.machine.wake <= self.fleet.now:
                self.take(Tick())

        self.fleet.after(max(0.0, wake - self.fleet.now), ring)

    def carry_out(self, effect: Any) -> None:
        match effect:
            case Publish():
                if self.up:
                    self.fleet.publish(effect.topic, effect.payload, effect.retain)
            case Subscribe():
                self.filters[effect.topic_filter] = None
                self.hear_retained(effect.topic_filter)
            case Unsubscribe():
                self.filters.pop(effect.topic_filter, None)
            case Report():
                self.fleet.reports.append((self.name, effect.kind, effect.data))


class ServerNode(Node):
    machine: AggregatorMachine

    def open(self) -> None:
        fleet, folder = self.fleet, self.folder
        self.filters = dict.fromkeys(self.fleet.topics.server_filters("0"))
        self.ledger = Ledger(folder / "ledger.db")
        self.blobs = Blobs(folder / "blobs")
        self.spool = Spool(folder / "spool")
        self.watch()
        self.machine = AggregatorMachine(
            fleet.config,
            fleet.plan,
            ledger=self.ledger,
            blobs=self.blobs,
            spool=self.spool,
            clock=lambda: fleet.age,
        )

    def durable(self) -> list[tuple[Any, tuple[str, ...]]]:
        return [
            (self.ledger, LEDGER_WRITES),
            (self.blobs, ("put", "retain")),
            (self.spool, ("keep", "clear")),
        ]

    def new_epoch(self) -> None:
        """The operator begins a control epoch."""
        if not self.alive:
            return
        effects = self.machine.new_epoch(self.fleet.now)
        self.fleet.hold("a new epoch")
        for effect in effects:
            self.carry_out(effect)
        self.alarm()


class DeviceNode(Node):
    machine: DeviceMachine

    def __init__(self, fleet: Fleet, name: str, rows: NDArray[Any]) -> None:
        x = np.asarray(rows, np.float32)
        y = np.arange(len(x)) % (fleet.plan.manifest.labels.classes or 1)
        self.data = Data(*fleet.plan.check_data(x, y))
        self.reason = ""  # why it may not train now
        self.under_way: tuple[StartTraining, float, float] | None = None
        self.whole = 1  # steps of the training that is under way
        self.at_most: int | None = None  # steps that there is time for
        self.residuals: dict[tuple[bytes, int], Any] = {}  # of each update that it made
        super().__init__(fleet, name)

    def open(self) -> None:
        topics = self.fleet.topics
        self.filters = dict.fromkeys(topics.device_filters(self.name))
        self.store = Store(self.name, self.folder / "device.db", nonce=self.fleet.rng.randbytes(16))
        self.cache = BlobCache(self.folder / "plans")
        self.watch()
        boot = self.fleet.rng.randbytes(8)
        self.machine = DeviceMachine(
            topics,
            self.store,
            self.cache,
            boot=boot,
            consent=lambda: self.reason,
            schemes=self.fleet.schemes.get(self.name, ("f32/1",)),
        )
        self.written = True
        self.refresh()

    def durable(self) -> list[tuple[Any, tuple[str, ...]]]:
        return [(self.store, STORE_WRITES), (self.cache, ("put",))]

    def refresh(self) -> None:
        if self.written:
            self.written = False
            self.fleet.books.write(self.store)

    def carry_out(self, effect: Any) -> None:
        if not isinstance(effect, StartTraining):
            super().carry_out(effect)
            return
        answer, life = self._train(effect), self.life
        self.whole = answer.outcome.steps if isinstance(answer, Trained) else 1

        def done() -> None:
            if self.alive and self.life == life:
                self.take(answer)

        takes = self.fleet.training_of.get(self.name, self.fleet.training)
        self.under_way = effect, self.fleet.now, takes
        self.fleet.after(takes, done)

    def take(self, event: Any) -> None:
        super().take(event)
        if self.alive and self.machine.hurried and self.under_way:
            self._hurry(*self.under_way)

    def _hurry(self, effect: StartTraining, began: float, takes: float) -> None:
        """End the training with the steps that the time was enough for, one at least."""
        self.under_way = None
        self.at_most = 1 + int((self.fleet.now - began) / takes * self.whole)
        answer, self.at_most = self._train(effect), None
        self.take(answer)

    def residual(self) -> bytes | None:
        """What the last counted update left out, of those that leave something."""
        wanted: bytes | None = None
        for seq, _, counted, _ in self.store.receipts():
            made = self.residuals.get((self.store.identity.nonce, seq))
            wanted = made.tobytes() if counted and made is not None else wanted
        return wanted

    def tired(self) -> bool:
        """Whether to end a training after the step that was just taken."""
        return False

    def _train(self, effect: StartTraining) -> Trained | TrainingStopped:
        plan, announced = self.fleet.plan, effect.announced
        round_, store = announced.round, self.store
        shapes = Shapes.of(plan.manifest.tensors)
        able = self.fleet.schemes.get(self.name, ("f32/1",))
        scheme = next(name for name in round_.schemes if name in able)
        c = residual = None
        if round_.control:
            raw = self.cache[round_.control.sha256]
            c = decode_vector(round_.control.codec, raw, shapes.train, shapes.n_train)
        left_out = store.residual(plan.id)
        assert store.epoch != 1 or left_out == self.residual()
        if left_out is not None:
            residual = np.frombuffer(left_out, "<f4")
        raw = self.cache[round_.model.sha256]
        steps = itertools.count(1)
        uplink = Uplink.of(round_.codecs, self.fleet.codecs.get(self.name, "f32"), residual)
        try:
            outcome = train(
                self.fleet.sessions[scheme],
                announced.algorithm,
                self.data,
                x=decode_vector(round_.model.codec, raw, shapes.update, shapes.n_update),
                shapes=shapes,
                c=c,
                c_i=store.control(plan.n_train) if round_.control else None,
                seed=round_.seed,
                device=self.name,
                round_=round_.round,
                uplink=uplink,
                stop=lambda: self.tired() or next(steps) == self.at_most,
            )
        except TrainingFailed as error:
            return TrainingStopped(announced.base, str(error))
        self.residuals[store.identity.nonce, store.seq + 1] = outcome.residual
        return Trained(announced.base, outcome)


@functools.cache
def matches(topic_filter: str, topic: str) -> bool:
    levels, names = topic_filter.split("/"), topic.split("/")
    return len(levels) == len(names) and all(
        level in ("+", name) for level, name in zip(levels, names, strict=True)
    )
