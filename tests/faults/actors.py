"""The processes of a fleet that is treated badly: killed at named points, on disks that fail."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from faults.account import Broken, Memory, counted_in
from faults.disk import Points, SqlDisk
from machines.nodes import DeviceNode, Killed, Node, ServerNode

from kellet.sdk.device import StartTraining, TrainingStopped
from kellet.sdk.errors import StorageError
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Publish, Report, Subscribe, Tick
from kellet.sdk.protocol.messages import FromDevice, FromServer, Offer, State, ToAll
from kellet.sdk.protocol.parts import part_count
from kellet.sdk.transport.base import Connected, Disconnected, Received
from kellet.server.ledger import Member, RoundRow, UpdateRow

if TYPE_CHECKING:
    from faults.world import World

__all__ = ["Faulty", "FaultyDevice", "FaultyServer", "in_words"]

_BACK_IN = 3.0  # seconds until a process that ended is started again
_STARTED_BY_HAND = 40.0  # the same, where it said that somebody has to do something


class Faulty(Node):
    """A process that dies where it is told to, over a disk that does what it is told to."""

    fleet: World
    seed_folder: Path | None = None

    def __init__(self, fleet: World, name: str, *rest: Any, label: str = "") -> None:
        self.label = label or name
        self.luck = Random(f"{fleet.seed} {self.label}")
        self.points = Points()
        self.points.die_at = fleet.arm.get(self.label)
        self.disk = SqlDisk(self.points, self.luck)
        self.dirty = True
        self.retired = False  # stopped for good
        self.dark_until = 0.0  # nothing gets through though the link seems up
        self.free_at = 0.0  # when a slow link has carried all that was sent before
        super().__init__(fleet, name, *rest)

    # -- life and death --------------------------------------------------------------------

    def open(self) -> None:
        if self.seed_folder is not None:
            self.folder, self.seed_folder = self.seed_folder, None
        try:
            with self.disk.mounted():
                super().open()
        except Killed:
            self.kill()
            self._back(1.0)
        except StorageError:
            self.alive = False
            self._back(_BACK_IN)
        self.dirty = True

    def restart(self) -> None:
        if self.retired or self.fleet.closed:
            return
        self.points.dead = False
        self.alive = True
        self.open()
        if self.alive:
            self.fleet.hold(f"{self.label} started")
            self.connect()

    def _back(self, seconds: float) -> None:
        self.fleet.after(seconds, self.restart_if_dead)

    def connect(self) -> None:
        for other in self.fleet.nodes:
            # A broker knows one client of a name: who comes takes the other's place.
            if other is not self and other.name == self.name and other.up and self.alive:
                other.cut()
                self.fleet.after(self.luck.uniform(3, 15), other.connect)
        super().connect()

    def kill(self) -> None:
        if not self.alive:
            return
        self.points.dead = True
        self.alive = self.up = False
        self.session += 1
        self.life += 1
        copy = self.fleet.folder / f"{self.label}-{self.life}"
        if self.folder.exists():
            shutil.copytree(self.folder, copy)
            if self.disk.tear(copy):
                self.fleet.tally["commit torn"] += 1
            shutil.rmtree(self.folder)
        self.folder = copy
        self.disk = SqlDisk(self.points, self.luck)

    def refresh(self) -> None:
        """The account reads the stores by itself."""

    # -- points ------------------------------------------------------------------------------

    def _watched(self, write: Callable[..., Any]) -> Callable[..., Any]:
        name = write.__name__

        @functools.wraps(write)
        def watched(*args: Any, **options: Any) -> Any:
            self.points.pass_by(f"before {name}")
            if name in ("put", "keep"):
                self.disk.check_room("a file")
            done = write(*args, **options)
            self.dirty = True
            self.wrote(name, args)
            self.points.pass_by(f"after {name}")
            return done

        return watched

    def wrote(self, name: str, args: tuple[Any, ...]) -> None:
        """Tell the account what lies on the disk now."""

    def take(self, event: Any) -> None:
        if not self.alive:
            return
        self.steps += 1
        self.fleet.events += 1
        kind = kind_of(event)
        self.fleet.tell(self, "took", event)
        try:
            effects = self.machine.step(event, self.fleet.now)
            self.points.pass_by(f"took {kind}, said nothing")
            self.fleet.hold(f"{self.label} took {kind}")
            for effect in effects:
                self.fleet.tell(self, "said", effect)
                self.carry_out(effect)
                self.points.pass_by(f"said {kind_of(effect)}")
        except Killed:
            self.fleet.tell(self, "died", None)
            self.kill()
            self._back(self.luck.uniform(0.5, 5))
            return
        except StorageError:
            # As the drivers do: a disk that fails ends the process.
            self.fleet.tally["ended by its disk"] += 1
            self.kill()
            self._back(_BACK_IN)
            return
        except Broken:
            raise
        except Exception as error:
            raise Broken("exception", f"{self.label} took {event}: {error!r}") from error
        self.alarm()
        self.after_step()

    def after_step(self) -> None:
        """What the driver looks at after each step."""

    def carry_out(self, effect: Any) -> None:
        match effect:
            case Publish():
                self.fleet.check_public(self, effect.topic, effect.payload)
                if self.up and self.fleet.now < self.dark_until:
                    self.fleet.tally["message lost in a partition"] += 1
                elif self.up:
                    self.fleet.publish(effect.topic, effect.payload, effect.retain)
            case Subscribe():
                super().carry_out(effect)
                for topic, payload in self.fleet.retained.items():
                    if self.hears(topic):
                        self.fleet.after(0.001, self.inbox(topic, payload, self.session))
            case Report():
                self.fleet.check_report(effect)
                super().carry_out(effect)
            case _:
                super().carry_out(effect)


class FaultyServer(Faulty, ServerNode):
    """The aggregator. ``counted``, ``rounds``, ``members``: the ledger's rows as they are now."""

    counted: list[UpdateRow]
    rounds: list[RoundRow]
    members: list[Member]
    _rows_written = True  # whether another table than the members' has changed

    def open(self) -> None:
        self._rows_written = True
        super().open()
        if self.alive:
            path = self.spool.path

            def checked(uid: bytes) -> Path | None:
                self.disk.check_room("an update")
                return path(uid)

            self.spool.path = checked  # type: ignore[method-assign]

    def wrote(self, name: str, args: tuple[Any, ...]) -> None:
        self._rows_written |= name != "write_member"
        if name == "put":
            (data,) = args
            self.fleet.add_blob(data)
        if name == "keep":
            uid, assembly = args
            self.fleet.account.stored[uid] = assembly.data()

    def look(self) -> None:
        """Read the ledger."""
        self.dirty = False
        self.members = self.ledger.members()
        if self._rows_written:
            self._rows_written = False
            self.counted = self.ledger._updates("where counted = 1 order by rowid")
            self.rounds = self.ledger.rounds()

    def new_epoch(self) -> None:
        if not self.alive:
            return
        try:
            effects = self.machine.new_epoch(self.fleet.now)
            self.fleet.hold("a new epoch")
            for effect in effects:
                self.carry_out(effect)
        except (Killed, StorageError):
            self.kill()
            self._back(_BACK_IN)
            return
        self.alarm()

    def held(self) -> dict[str, tuple[int, int]]:
        """What it holds in memory and in the spool, and the most that it may."""
        machine, fleet = self.machine, self.fleet
        uploads = machine._counting._uploads
        largest = max((t.offer.size for t in uploads._open.values()), default=0)
        names = len({device.name for device in fleet.devices.values()})
        spooled = sum(counted_in(row) == machine.round for row in self.counted)
        # Plan, model and control, and the two of the round before, asked for just before it ended;
        # those of announcements that may be named.
        kept = 2 * fleet.config.max_stale if fleet.config.late == "buffer" else 0
        return {
            "bytes granted": (uploads.granted_bytes, max(fleet.config.admission, largest)),
            "blobs": (len(self.blobs._held), 8 + kept),
            "downloads": (len(machine._downloads._wanted), 5 + kept),
            "bodies in memory": (len(self.spool._held), 0),
            # Of each installation what is counted, what leaves, and what was begun.
            "bodies in the spool": (
                len(list((self.folder / "spool").iterdir())),
                spooled + 3 * (names + fleet.installations),
            ),
        }


class FaultyDevice(Faulty, DeviceNode):
    """A device. ``memory``: its store as it was after its last write."""

    memory: Memory
    trusted = True
    cloned = False

    @property
    def boot(self) -> bytes:
        """What this start of the process drew."""
        return self.machine._talk.boot

    def look(self) -> None:
        """Read the store."""
        self.dirty = False
        self.memory = self.fleet.account.remember(self.store)

    def is_trusted(self, server: FaultyServer, member: Member) -> bool:
        """Whether this store is its membership's: not where a disk went back, until it is heard.

        Of clones the one that the ledger heard last speaks for the membership. A device of an
        epoch that the ledger does not know will have to enrol anew.
        """
        mine = member.boot == self.boot
        session = server.machine._roster._session.get(self.name)
        if mine and session == (member.nonce, member.boot):
            self.trusted = True
        elif self.cloned and not mine:
            self.trusted = False
        return self.alive and self.trusted and (self.memory.epoch or 0) <= server.machine.epoch

    def held(self) -> dict[str, tuple[int, int]]:
        fetch = self.machine._fetch
        return {
            "blobs": (len(self.cache._held), 4),
            "fetches": (len(fetch._open) if fetch else 0, 3),
            "parts in flight": (
                len(self.machine._upload._sent_at) if self.machine._upload else 0,
                part_count(1 << 16, 1024),
            ),
        }

    def after_step(self) -> None:
        if self.machine.fatal:
            self.fleet.tally["ended: another process uses the id"] += 1
            self.kill()
            self._back(_STARTED_BY_HAND)
        elif self.machine.left and self.up:
            self.fleet.tally["left"] += 1
            self.up = False
            self.fleet.after(self.luck.uniform(1, 60), self._enrol_again)

    def _enrol_again(self) -> None:
        if self.alive and self.machine.left:
            self.kill()
            self.restart()

    def cut(self) -> None:
        if self.up:
            self._will()
        super().cut()

    def kill(self) -> None:
        if self.alive and self.up:
            self._will()
        super().kill()

    def _will(self) -> None:
        """The broker says that the device is gone, some time after it is."""
        topic = self.fleet.topics.state(self.name)
        payload = wire.pack(State(online=False, boot=self.boot))
        some_time = self.luck.uniform(0.1, 45)
        self.fleet.after(some_time, lambda: self.fleet.publish(topic, payload, True))

    def residual(self) -> bytes | None:
        # The virtual fleet's own expectation names an update's residual at its training's start;
        # here one may be begun again before the other has ended.
        return self.store.residual(self.fleet.plan.id)

    def tired(self) -> bool:
        return self.luck.random() < self.fleet.partial

    def carry_out(self, effect: Any) -> None:
        if isinstance(effect, StartTraining):
            if self.store.pending_uid() is not None:
                raise Broken("unsettled", f"{self.label} trains while an update waits")
            self.fleet.training = self.luck.uniform(*self.fleet.training_takes)
        super().carry_out(effect)

    def _train(self, effect: StartTraining) -> Any:
        if self.luck.random() < self.fleet.failing:
            self.fleet.tally["training failed"] += 1
            return TrainingStopped(effect.announced.base, "the battery is low")
        return super()._train(effect)


def in_words(thing: Any) -> str:
    """An event or an effect with what it carries."""
    if not isinstance(thing, Received | Publish):
        return repr(thing)[:300]
    kind = kind_of(thing)
    if kind.endswith("part") or kind == "what is no message":
        return f"{kind} of {len(thing.payload)} bytes"
    return repr(wire.read(thing.payload))


def kind_of(thing: Any) -> str:
    """An event or an effect in a word."""
    match thing:
        case Connected() | Disconnected() | Tick() | Subscribe():
            return type(thing).__name__.lower()
        case Report():
            return "report"
        case Received() | Publish():
            return _message(thing.topic, thing.payload)
    return type(thing).__name__.lower()


def _message(topic: str, payload: bytes) -> str:
    channel = topic.rsplit("/", maxsplit=1)[-1]
    if "/blob/" in topic:
        return "blob part"
    if channel == "up":
        return "part"
    kinds: Any = {"req": FromDevice, "ctl": FromServer, "round": ToAll, "state": State}[channel]
    try:
        message = wire.unpack(payload, kinds)
    except Exception:
        return "what is no message"
    if isinstance(message, Offer) and message.base == bytes(32):
        return "offer of a leave"
    return type(message).__name__.lower()
