"""The device's state machine: no sockets, no threads, no clock, no training.

``DeviceMachine.step(event, now)`` answers an event with effects, which a driver
carries out: ``kellet.sdk.runner`` on a real device, ``kellet.server.simulate``
in a simulation. Before an effect is returned, what it rests on is in the store.

A device is always doing one of five things: nothing, asking to join a round,
fetching its blobs, training, or settling an update. An unsettled update comes
before everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kellet.sdk import algorithms
from kellet.sdk.blobs import BlobCache
from kellet.sdk.errors import FleetError, ProtocolError, UsageError
from kellet.sdk.fetch import Fetch
from kellet.sdk.outgoing import Announced, leave_of, update_of
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Effect, Publish, Report, Subscribe, Tick, Unsubscribe
from kellet.sdk.protocol.messages import (
    NO_BASE,
    Abort,
    Ack,
    Busy,
    FromServer,
    Grant,
    Hello,
    Idle,
    Join,
    Receipt,
    Reject,
    State,
    ToAll,
    Train,
    Welcome,
    announcement_hash,
)
from kellet.sdk.protocol.topics import Address, Topics
from kellet.sdk.store import Store
from kellet.sdk.trainer import Holdout, Outcome
from kellet.sdk.transport.base import Connected, Disconnected, Received, Refused
from kellet.sdk.upload import Upload

__all__ = [
    "DeviceEvent",
    "DeviceMachine",
    "Leave",
    "StartTraining",
    "Trained",
    "TrainingStopped",
]

_REPEAT = 2.0
_LONGEST_REPEAT = 30.0
_LISTEN = 60.0


@dataclass(frozen=True, slots=True)
class StartTraining:
    """Effect: train on ``announced`` for at most ``seconds``; answer with the same base."""

    announced: Announced
    seconds: float


@dataclass(frozen=True, slots=True)
class Trained:
    """Event: training for ``base`` came to ``outcome``."""

    base: bytes
    outcome: Outcome
    holdout: Holdout | None = None


@dataclass(frozen=True, slots=True)
class TrainingStopped:
    """Event: training for ``base`` gave nothing to send."""

    base: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Event: take this device out of the fleet, its control out of C."""


DeviceEvent = (
    Connected | Disconnected | Refused | Received | Tick | Trained | TrainingStopped | Leave
)
Doing = Literal["nothing", "joining", "fetching", "training", "settling"]


class DeviceMachine:
    """One device's side of the protocol (docs/protocol.md).

    ``boot``: 8 random bytes of this start of the process. ``wake`` is when the machine
    wants a ``Tick`` (on the clock that ``now`` comes from), or None.
    """

    def __init__(self, topics: Topics, store: Store, cache: BlobCache, *, boot: bytes) -> None:
        self._topics = topics
        self._store = store
        self._cache = cache
        self._boot = boot
        self._identity = store.identity
        self._device = self._identity.device
        self._link = False
        self._max_payload: int | None = None
        self._welcome = False
        self._heard = b""
        self._announced: Announced | None = None
        self._given_up: bytes | None = None  # a base whose training failed here
        self._fetch: Fetch | None = None
        self._seconds = 0.0
        self._training: bytes | None = None
        self._upload: Upload | None = None
        self._joining = False
        self._leaving = False
        self.left = False
        self._repeat = _REPEAT
        self._at: float | None = None  # when to say hello or join again
        self._listen_at = 0.0  # when to ask the broker for the announcement again
        self.fatal: FleetError | None = None

    # -- what a driver asks -------------------------------------------------

    @property
    def wake(self) -> float | None:
        if not self._link or self.fatal or self.left:
            return None
        times = [self._at]
        if self._welcome and self._fetch:
            times.append(self._fetch.wake)
        if self._welcome and self._upload:
            times.append(self._upload.wake)
        if self._listening:
            times.append(self._listen_at)
        return min((t for t in times if t is not None), default=None)

    @property
    def linked(self) -> bool:
        """Whether the link is up."""
        return self._link

    @property
    def doing(self) -> Doing:
        if self._upload:
            return "settling"
        if self._training:
            return "training"
        if self._fetch:
            return "fetching"
        return "joining" if self._joining else "nothing"

    @property
    def _listening(self) -> bool:
        """Whether the next thing to happen is an announcement."""
        return self._welcome and self.doing in ("nothing", "joining")

    @property
    def training_base(self) -> bytes | None:
        """The announcement being trained for; a driver stops training when it changes."""
        return self._training

    def step(self, event: DeviceEvent, now: float) -> list[Effect | StartTraining]:
        """Take one event; what is to be done about it, in order."""
        if self.fatal or self.left:
            return []
        match event:
            case Received():
                return self._received(event, now)
            case Tick():
                return self._tick(now)
            case Connected():
                self._link, self._welcome = True, False
                self._max_payload = event.max_payload
                self._repeat = _REPEAT
                online = wire.pack(State(online=True, boot=self._boot))
                state = Publish(self._topics.state(self._device), online, retain=True)
                return [state, *self._hello(now)]
            case Disconnected():
                self._link = self._welcome = self._joining = False
                self._at = None
                if self._upload:
                    self._upload.link_lost()
                return []
            case Refused():
                return self._die(
                    f"the broker refuses this device: {event.reason}", "check its credentials"
                )
            case Trained():
                return self._trained(event, now)
            case TrainingStopped():
                return self._stopped(event, now)
            case Leave():
                self._leaving = True
                return self._drop_round() + self._next(now)

    # -- conversation ---------------------------------------------------------

    @property
    def _who(self) -> tuple[bytes, bytes]:
        return self._identity.nonce, self._boot

    def _say(self, message: Hello | Join | Abort) -> Publish:
        return Publish(self._topics.req(self._device), wire.pack(message))

    def _hello(self, now: float) -> list[Effect]:
        # Who does not know us has not heard our join either.
        self._welcome = self._joining = False
        self._at = now + self._repeat
        self._repeat = min(self._repeat * 2, _LONGEST_REPEAT)
        hello = Hello(
            nonce=self._identity.nonce,
            boot=self._boot,
            incarnation=self._identity.incarnation,
            seq=self._store.seq,
            pending=self._store.pending_uid(),
            epoch=self._store.epoch,
            audit=self._store.audit(),
        )
        return [self._say(hello)]

    def _tick(self, now: float) -> list[Effect | StartTraining]:
        effects: list[Effect | StartTraining] = []
        if not self._link:
            return effects
        if self._at is not None and now >= self._at:
            if not self._welcome:
                effects += self._hello(now)
            else:
                self._at = None
                self._joining = False
                effects += self._next(now)
        if self._welcome and self._fetch and now >= self._fetch.wake:
            effects += self._fetch.ask(now)
        if self._welcome and self._upload and now >= self._upload.wake:
            effects += self._upload.offer(now)
        if self._listening and now >= self._listen_at:
            # An announcement may have been lost; the broker has kept the last one. Some brokers
            # answer a subscription that they have already with nothing.
            self._listen_at = now + _LISTEN
            effects += [Unsubscribe(self._topics.round), Subscribe(self._topics.round)]
        return effects

    def _received(self, event: Received, now: float) -> list[Effect | StartTraining]:
        address = self._topics.parse(event.topic)
        if address is None:
            return []
        try:
            match address.channel:
                case "blob":
                    return self._blob(address, event.payload, now)
                case "round":
                    return self._announcement(event.payload, now)
                case "ctl" if address.device == self._device:
                    return self._control(wire.unpack(event.payload, FromServer), now)
        except (ProtocolError, UsageError) as error:
            return [Report("refused", {"topic": event.topic, "error": str(error)})]
        return []

    def _control(self, message: FromServer, now: float) -> list[Effect | StartTraining]:
        match message:
            case Welcome() if message.boot == self._boot:
                return self._welcomed(message, now)
            case Train():
                return self._asked(message, now)
            case Busy():
                self._busy(message, now)
            case Grant() if self._upload and message.uid == self._upload.pending.uid:
                return list(self._upload.granted(message, now))
            case Ack() if self._upload and message.uid == self._upload.pending.uid:
                return list(self._upload.acknowledged(message, now))
            case Receipt():
                return self._receipt(message, now) + self._next(now)
            case Reject():
                return self._rejected(message, now)
        return []

    def _welcomed(self, message: Welcome, now: float) -> list[Effect | StartTraining]:
        if self._welcome or message.epoch < (self._store.epoch or 0):
            return []
        self._welcome = True
        self._at = None
        self._listen_at = now + _LISTEN
        self._repeat = _REPEAT
        effects: list[Effect | StartTraining] = [Report("welcome", {"epoch": message.epoch})]
        if message.receipt:
            effects += self._receipt(message.receipt, now)
        effects += self._epoch(message.epoch)
        if self._fetch:
            effects += self._fetch.ask(now)
        if self._upload:
            self._upload.link_lost()  # the aggregator may be another process than before
            effects += self._upload.offer(now)
        return effects + self._next(now)

    def _rejected(self, message: Reject, now: float) -> list[Effect | StartTraining]:
        nonce, boot = self._who
        if message.boot not in (None, boot) or message.nonce not in (None, nonce):
            return []  # it answers somebody else, or what this device was
        match message.code:
            case "version":
                low, high = message.speaks
                return self._die(
                    f"the aggregator speaks protocol {low} to {high}, this device 1",
                    "update the older side",
                )
            case "fenced":
                return self._die(
                    f"another process uses the device id {self._device!r}",
                    "stop one of them, or give each an id and a --state directory of its own",
                )
            case "restored":
                self._store.enrol_anew()
                self._identity = self._store.identity
                self._upload = self._fetch = None
                self._training = None
                return [Report("enrolled_anew", {"why": message.reason}), *self._hello(now)]
            case "unknown":
                return list(self._hello(now)) if self._welcome else []

    def _die(self, what: str, repair: str) -> list[Effect | StartTraining]:
        self.fatal = FleetError(what, repair=repair)
        self._training = None
        return [Report("fatal", {"error": str(self.fatal)})]

    # -- rounds ---------------------------------------------------------------

    def _announcement(self, raw: bytes, now: float) -> list[Effect | StartTraining]:
        message: ToAll = wire.unpack(raw, ToAll)
        effects: list[Effect | StartTraining] = []
        again, self._heard = raw == self._heard, raw
        self._listen_at = now + _LISTEN
        if self._link and (again or not self._welcome):
            # Said again, or before a welcome: the aggregator has just come, or come back.
            effects += self._hello(now)
        if again:
            return effects
        if self._welcome and self._upload:
            effects += self._upload.offer(now)  # the round went on: was it counted?
        if isinstance(message, Idle):
            effects += self._drop_round()
            self._announced = None
            effects.append(Report("idle", {"reason": message.reason, "round": message.round}))
            return effects
        effects += self._drop_round()
        self._announced = None  # should this version not know the algorithm
        self._announced = Announced(
            message, announcement_hash(raw), algorithms.from_wire(message.algorithm)
        )
        blobs = {b.sha256 for b in (message.plan, message.model, message.control) if b}
        self._cache.retain(blobs)
        return effects + self._next(now)

    def _drop_round(self) -> list[Effect | StartTraining]:
        """Let go of a round that is over; an update that is already pending stays."""
        effects: list[Effect | StartTraining] = list(self._fetch.cancel()) if self._fetch else []
        self._fetch = None
        self._training = None
        if self._joining:
            self._joining, self._at = False, None
        return effects

    def _epoch(self, epoch: int) -> list[Effect | StartTraining]:
        """Enter a control epoch that is new; there is no way back to an older one."""
        if epoch <= (self._store.epoch or 0):
            return []
        self._store.new_epoch(epoch)
        self._upload = None
        self._training = None  # its control was of the old epoch
        return [Report("epoch", {"epoch": epoch})]

    def _next(self, now: float) -> list[Effect | StartTraining]:
        """Begin what there is to do, unless something is being done."""
        if not (self._link and self._welcome) or self._upload or self._fetch or self._training:
            return []
        if self.left:
            return []
        pending = self._store.pending()
        if pending:
            self._upload = Upload(self._topics, self._device, self._who, pending, self._part_size())
            return list(self._upload.offer(now))
        if self._leaving and self._at is not None:
            return []
        if self._leaving:
            self._store.save_pending(leave_of(self._store))
            return self._next(now)
        announced = self._announced
        if (
            not announced
            or self._joining
            or announced.round.epoch < (self._store.epoch or 0)
            or announced.base in (self._store.last_base, self._given_up)
        ):
            return []
        effects = self._epoch(announced.round.epoch)
        self._joining = True
        self._at = now + self._repeat
        self._repeat = min(self._repeat * 1.5, _LONGEST_REPEAT)
        nonce, boot = self._who
        join = Join(nonce=nonce, boot=boot, round=announced.round.round, base=announced.base)
        return [*effects, self._say(join)]

    def _part_size(self) -> int:
        size = self._announced.round.part_size if self._announced else 65536
        return size if self._max_payload is None else max(1024, min(size, self._max_payload - 64))

    def _busy(self, message: Busy, now: float) -> None:
        if self._upload and message.uid == self._upload.pending.uid:
            self._upload.busy(message, now)
        elif self._joining and self._announced and message.round == self._announced.round.round:
            self._at = now + message.after

    def _asked(self, message: Train, now: float) -> list[Effect | StartTraining]:
        announced = self._announced
        if not announced or message.base != announced.base or not self._joining:
            return []
        self._joining, self._at = False, None
        self._repeat = _REPEAT
        self._seconds = message.seconds
        round_ = announced.round
        blobs = [b for b in (round_.plan, round_.model, round_.control) if b]
        fetch = Fetch(
            self._topics,
            self._device,
            self._who,
            blobs=blobs,
            kept=round_.plan,
            part_size=round_.part_size,
            cache=self._cache,
        )
        if fetch.done:
            return [self._start(announced)]
        self._fetch = fetch
        return list(fetch.begin(now))

    def _blob(self, address: Address, raw: bytes, now: float) -> list[Effect | StartTraining]:
        if not self._fetch or not self._announced:
            return []
        effects: list[Effect | StartTraining] = list(self._fetch.part(address, raw, now))
        if self._fetch.done:
            effects.append(Report("fetched", {"bytes": self._fetch.received}))
            self._fetch = None
            effects.append(self._start(self._announced))
        return effects

    def _start(self, announced: Announced) -> StartTraining:
        self._training = announced.base
        return StartTraining(announced, self._seconds)

    def _stopped(self, event: TrainingStopped, now: float) -> list[Effect | StartTraining]:
        if event.base != self._training or not self._announced:
            return []
        self._training = None
        self._given_up = event.base
        nonce, boot = self._who
        reason = event.reason[:300]
        round_ = self._announced.round.round
        abort = Abort(nonce=nonce, boot=boot, round=round_, reason=reason)
        return [Report("abort", {"round": round_, "reason": reason}), self._say(abort)]

    def _trained(self, event: Trained, now: float) -> list[Effect | StartTraining]:
        announced, outcome = self._announced, event.outcome
        if event.base != self._training or not announced:
            return []
        self._training = None
        round_ = announced.round
        self._store.save_pending(
            update_of(self._store, announced, outcome, event.holdout),
            plan=round_.plan.sha256,
            kept=None if outcome.kept is None else outcome.kept.astype("<f4").tobytes(),
        )
        report = Report(
            "trained",
            {
                "round": round_.round,
                "steps": outcome.steps,
                "loss": outcome.loss,
                "drift": outcome.drift,
            },
        )
        return [report, *self._next(now)]

    def _receipt(self, message: Receipt, now: float) -> list[Effect | StartTraining]:
        sent = self._upload.sent if self._upload else 0
        leave = self._upload is not None and self._upload.pending.base == NO_BASE
        if not self._store.settle(message.uid, counted=message.counted, reason=message.reason):
            return []
        self._upload = None
        self.left = self.left or (leave and message.counted)
        if leave and not self.left:
            self._at = now + self._repeat  # refused: try again, but not at once
            self._repeat = min(self._repeat * 2, _LONGEST_REPEAT)
        return [
            Report(
                "left" if self.left else "settled",
                {
                    "round": message.round,
                    "counted": message.counted,
                    "reason": message.reason,
                    "bytes": sent,
                },
            )
        ]
