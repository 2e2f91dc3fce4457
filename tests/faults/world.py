"""A fleet on virtual time, in a world as bad as a seed makes it; held to account at every event."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from faults.account import Account, Broken
from faults.actors import Faulty, FaultyDevice, FaultyServer, in_words
from faults.stand_in import StandIn
from machines.network import Fleet
from numpy.typing import NDArray

from kellet.sdk import store as store_module
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.plan import Plan
from kellet.sdk.protocol.effects import Report

__all__ = ["CALM", "Climate", "World"]


@dataclass(frozen=True)
class Climate:
    """What the network does to a message.

    ``lost``, ``twice``, ``torn`` (cut short) and ``flipped`` (bits) are shares. A message is
    up to ``slowest`` seconds late, and so out of order; the second copy of a repeated one up to
    ``stale`` seconds. ``rate``: bytes/s that a link carries, 0 for any number.
    """

    lost: float = 0.0
    twice: float = 0.0
    torn: float = 0.0
    flipped: float = 0.0
    slowest: float = 0.01
    stale: float = 0.01
    rate: float = 0.0


CALM = Climate()


class World(Fleet):
    """``tally`` counts what befell the fleet. ``arm``: where a process is to die, by its name."""

    server_kind = FaultyServer
    device_kind = FaultyDevice
    server: FaultyServer
    devices: dict[str, FaultyDevice]  # type: ignore[assignment]
    weather: Climate  # type: ignore[assignment]

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        data: Mapping[str, NDArray[Any]],
        algorithm: FedAvg,
        *,
        seed: int = 0,
        climate: Climate = CALM,
        arm: Mapping[str, tuple[str | None, int]] | None = None,
        **config: Any,
    ) -> None:
        self.seed = seed
        self.arm = dict(arm or {})
        self.account = Account(plan)
        self.tally: Counter[str] = Counter()
        self.events = 0
        self.closed = False
        self.training_takes = (0.5, 3.0)
        self.partial = 0.0  # chance that a device stops training after a step
        self.failing = 0.0  # chance that a training fails
        self.clock_is_off = 0.0
        self.trace: Callable[[str], None] | None = None
        self._prints: Any = None
        self._era = 0
        self._imaged: dict[str, set[bytes]] = {}
        self._rows = data
        super().__init__(
            folder,
            plan,
            data,
            algorithm,
            session=StandIn(plan),  # type: ignore[arg-type]
            seed=seed,
            weather=climate,  # type: ignore[arg-type]
            **config,
        )

    # -- time and truth --------------------------------------------------------------------

    @property
    def age(self) -> float:
        return self.now + self.clock_is_off

    @property
    def installations(self) -> int:
        """How many there were of all devices."""
        return len(self.server.members)

    @property
    def over(self) -> bool:
        return (
            self.server.alive
            and self.server.machine.finished
            and all(d.retired or (d.alive and _at_rest(d)) for d in self.devices.values())
        )

    def run(self, until: Any = None) -> None:
        try:
            super().run(until)
        except Broken:
            raise
        except AssertionError as error:
            raise Broken("stuck", str(error)) from None

    def hold(self, after: str) -> None:
        """Every promise, after every event."""
        if not self.server.alive:
            return
        self._check_memory()
        prints = self._fingerprint()
        nodes: list[Any] = [self.server, *self.devices.values()]
        dirty = [node for node in nodes if node.dirty and node.alive]
        if not dirty and prints == self._prints:
            return
        self._prints = prints
        for node in dirty:
            node.look()
        try:
            self.account.check(
                self.server, [d for d in self.devices.values() if hasattr(d, "memory")]
            )
        except Broken as broken:
            raise Broken(broken.check, f"{broken} (after {after})") from None

    def _fingerprint(self) -> Any:
        machine = self.server.machine
        opened = machine._round
        sums = [machine.control, *([opened.total] if opened else [])]
        return [(s.lo.tobytes(), s.hi.tobytes()) for s in sums], machine.epoch

    def _check_memory(self) -> None:
        nodes: list[Any] = [self.server, *self.devices.values()]
        for node in nodes:
            if not node.alive or (node.dirty and node is self.server):
                continue
            for what, (is_, may) in node.held().items():
                if is_ > may:
                    raise Broken("memory", f"{node.label} holds {is_} {what}, of at most {may}")

    def check_end(self) -> None:
        self.hold("the end")
        for device in self.devices.values():
            if not device.retired:
                self.account.check_settled(self.server, device)

    def tell(self, node: Faulty, did: str, what: Any) -> None:
        """One line of the story, where somebody listens."""
        if self.trace:
            words = in_words(what) if what is not None else ""
            self.trace(f"{self.events:5} {self.now:8.2f} s {node.label:10} {did} {words}")

    # -- secrets ------------------------------------------------------------------------------

    def _nonces(self) -> Iterator[tuple[str, bytes]]:
        """Each device and what only it and the aggregator know."""
        for device in self.devices.values():
            if hasattr(device, "memory"):
                yield device.memory.key

    def check_report(self, report: Report) -> None:
        """Who knows a nonce can speak for its device: no log may have it."""
        text = repr(report.data)
        for name, nonce in self._nonces():
            if nonce.hex() in text or repr(nonce)[2:-1] in text:
                raise Broken("secret", f"the report {report.kind} has {name}'s nonce")

    def check_public(self, node: Faulty, topic: str, payload: bytes) -> None:
        """Nor may what others can read."""
        for name, nonce in self._nonces():
            if nonce in payload and f"/{name}/" not in topic:
                raise Broken("secret", f"{node.label} publishes {name}'s nonce to {topic}")

    # -- the broker ------------------------------------------------------------------------------

    def add_blob(self, data: bytes) -> None:
        self.account.blobs[hashlib.sha256(data).digest()] = data

    def _send(self, node: Any, topic: str, payload: bytes) -> None:
        climate, luck = self.weather, self.rng
        if self.now < node.dark_until:
            self.tally["message lost in a partition"] += 1
            return
        if luck.random() < climate.lost:
            self.tally["message lost"] += 1
        else:
            late = luck.uniform(0, climate.slowest)
            if climate.rate:
                node.free_at = max(node.free_at, self.now) + len(payload) / climate.rate
                late += node.free_at - self.now
            self._later(late, node.inbox(topic, self._damaged(topic, payload), node.session))
        if luck.random() < climate.twice:
            self.tally["message repeated"] += 1
            late = luck.uniform(0, climate.stale)
            self._later(late, node.inbox(topic, self._damaged(topic, payload)))

    def _later(self, late: float, arrive: Callable[[], None]) -> None:
        """Unless a backup is put back before: no message lives as long as that takes."""
        era = self._era
        self.after(late, lambda: arrive() if era == self._era else None)

    def _damaged(self, topic: str, payload: bytes) -> bytes:
        climate, luck = self.weather, self.rng
        if luck.random() < climate.torn and payload:
            self.tally["message cut short"] += 1
            return payload[: luck.randrange(len(payload))]
        if luck.random() >= climate.flipped or not payload:
            return payload
        self.tally["message with a flipped bit"] += 1
        damaged = bytearray(payload)
        at = luck.randrange(8 * len(payload))
        damaged[at // 8] ^= 1 << at % 8
        return bytes(damaged)

    # -- what befalls it ----------------------------------------------------------------------

    def clone(self, name: str) -> None:
        """The card of a device is copied into a second board, with the same id."""
        device = self.devices[name]
        label = f"{name}-twin-{len(self.devices)}"
        folder = self.folder / f"{label}-0"
        if not device.alive or not device.folder.exists():
            return
        shutil.copytree(device.folder, folder)
        self.tally["card cloned"] += 1
        device.cloned = True
        twin = _twin(self, name, self._rows[name], label, folder)
        self.devices[label] = twin
        twin.connect()

    def image(self, name: str) -> None:
        """Somebody makes an image of a device's card, or a backup of the aggregator's state."""
        node: Faulty = self.server if name == "server" else self.devices[name]
        if node.alive and node.folder.exists():
            shutil.rmtree(self.folder / f"image of {name}", ignore_errors=True)
            shutil.copytree(node.folder, self.folder / f"image of {name}")
            self._imaged[name] = {row.uid for row in self.server.counted}

    def restore(self, name: str) -> None:
        """The image is put back, and a process started over it."""
        if name not in self._imaged:
            return
        node: Faulty = self.server if name == "server" else self.devices[name]
        node.kill()
        shutil.rmtree(node.folder, ignore_errors=True)
        shutil.copytree(self.folder / f"image of {name}", node.folder)
        if name == "server":
            self.tally["aggregator restored from a backup"] += 1
            self._era += 1
            self.account.forgotten |= {row.uid for row in self.server.counted}
            self.account.forgotten -= self._imaged[name]
            for device in self.devices.values():
                device.trusted = False
        else:
            self.tally["card restored"] += 1
            self.devices[name].trusted = False
        node.restart_if_dead()

    def close(self) -> None:
        """No process starts again."""
        self.closed = True

    def heal(self) -> None:
        for device in self.devices.values():
            if "-twin-" in device.label:
                device.kill()
                device.retired = True
        nodes: list[Any] = [self.server, *self.devices.values()]
        for node in nodes:
            node.points.die_at = None
            node.disk.full, node.disk.fail_in = False, None
            node.dark_until = 0.0
        self.partial = self.failing = 0.0
        self.training_takes = (0.5, 3.0)
        self.weather = CALM
        for device in self.devices.values():
            device.reason = ""
        for node in nodes:
            node.restart_if_dead()
            node.cut()
            node.connect()
        self.run()
        self.let_pass(60)


def _twin(world: World, name: str, rows: Any, label: str, folder: Path) -> FaultyDevice:
    class Twin(FaultyDevice):
        seed_folder = folder
        trusted = False
        cloned = True

    return Twin(world, name, rows, label=label)


def _at_rest(device: FaultyDevice) -> bool:
    machine = device.machine
    return machine.doing == "nothing" and machine.fatal is None and not machine.left


@contextmanager
def drawn_from(world_rng: Any) -> Iterator[None]:
    """New nonces come from the seed, so that a failure can be replayed to the bit."""
    real = store_module.os
    store_module.os = SimpleNamespace(urandom=world_rng.randbytes)  # type: ignore[assignment]
    try:
        yield
    finally:
        store_module.os = real
