"""The device's state machine: no sockets, no threads, no clock, no training.

``DeviceMachine.step(event, now)`` answers an event with effects, which a driver
carries out: ``kellet.sdk.runner`` on a real device, ``kellet.server.simulate``
in a simulation. Before an effect is returned, what it rests on is in the store.

A device is always doing one of five things: nothing, asking to join a round,
fetching its blobs, training, or settling an update. An unsettled update comes
before everything else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Literal

from kellet.sdk.blobs import BlobCache
from kellet.sdk.conversation import Conversation
from kellet.sdk.errors import FleetError, ProtocolError, UsageError
from kellet.sdk.fetch import Fetch
from kellet.sdk.outgoing import Announced, leave_of, memory_of, update_of
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Effect, Report, Tick
from kellet.sdk.protocol.limits import MAX_PART
from kellet.sdk.protocol.messages import (
    FLOAT,
    NO_BASE,
    Ack,
    Busy,
    FromServer,
    Grant,
    Idle,
    Receipt,
    Reject,
    ToAll,
    Train,
    Welcome,
)
from kellet.sdk.protocol.topics import Address, Topics
from kellet.sdk.releases import Sharing
from kellet.sdk.store import Store
from kellet.sdk.telling import Telling
from kellet.sdk.transport.base import Connected, Disconnected, Received, Refused
from kellet.sdk.upload import Upload
from kellet.sdk.work import Describe, Described, Leave, StartTraining, Trained, TrainingStopped

__all__ = [
    "Describe",
    "Described",
    "DeviceEvent",
    "DeviceMachine",
    "Leave",
    "StartTraining",
    "Trained",
    "TrainingStopped",
]


DeviceEvent = (
    Connected
    | Disconnected
    | Refused
    | Received
    | Tick
    | Described
    | Trained
    | TrainingStopped
    | Leave
)
DeviceEffect = Effect | Describe | StartTraining
Doing = Literal["nothing", "counting", "joining", "fetching", "training", "settling"]


NOTHING = Sharing()


class DeviceMachine:
    """One device's side of the protocol (docs/protocol.md).

    ``boot``: 8 random bytes of this start of the process. ``consent``: the reason why this
    device may not train now, or empty; asked at an announcement, and each minute while there
    is one. ``schemes`` (versioned names) and ``profile``: what it says that it can do.
    ``sharing``: what it may tell of its data, ``below`` the source of the noise for that.
    ``wake`` is when the machine wants a ``Tick`` (on the clock that ``now`` comes from), or None.
    """

    def __init__(
        self,
        topics: Topics,
        store: Store,
        cache: BlobCache,
        *,
        boot: bytes,
        consent: Callable[[], str] = lambda: "",
        schemes: Sequence[str] = (FLOAT,),
        profile: str = "",
        sharing: Sharing = NOTHING,
        below: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self._topics = topics
        self._store = store
        self._cache = cache
        self._consent = consent
        self._telling = Telling(store.releases, sharing, below)
        self._talk = Conversation(
            topics, store, boot=boot, schemes=schemes, profile=profile, telling=self._telling
        )
        self._device = store.identity.device
        self._heard = b""
        self._announced: Announced | None = None
        self._working: Announced | None = None  # what is fetched or trained for
        self._given_up: bytes | None = None  # a base whose training failed here
        self._fetch: Fetch | None = None
        self._seconds = 0.0
        self._training: bytes | None = None
        self._upload: Upload | None = None
        self._good_for = MAX_PART  # the size of parts that the link has borne
        self._leaving = False
        self.left = False
        self.fatal: FleetError | None = None

    # -- what a driver asks -------------------------------------------------

    @property
    def wake(self) -> float | None:
        talk = self._talk
        if not talk.link or self.fatal or self.left:
            return None
        times = [talk.at]
        if talk.welcome and self._fetch:
            times.append(self._fetch.wake)
        if talk.welcome and self._upload:
            times.append(self._upload.wake)
        if self._listening:
            times.append(talk.listen_at)
        return min((t for t in times if t is not None), default=None)

    @property
    def linked(self) -> bool:
        """Whether the link is up."""
        return self._talk.link

    @property
    def doing(self) -> Doing:
        if self._upload:
            return "settling"
        if self._training:
            return "training"
        if self._fetch:
            return "fetching"
        if self._telling.counting:
            return "counting"
        return "joining" if self._talk.joining else "nothing"

    @property
    def _listening(self) -> bool:
        """Whether the next thing to happen is an announcement."""
        return self._talk.welcome and self.doing in ("nothing", "joining")

    @property
    def training_base(self) -> bytes | None:
        """The announcement being trained for; a driver stops training when it changes."""
        return self._training

    @property
    def hurried(self) -> bool:
        """Whether a driver should end the training after the next step, to send what it has."""
        working, newest = self._working, self._announced
        return bool(self._training and working and newest and working.hurried(newest.round))

    def step(self, event: DeviceEvent, now: float) -> list[DeviceEffect]:
        """Take one event; what is to be done about it, in order."""
        if self.fatal or self.left:
            return []
        match event:
            case Received():
                return self._received(event, now)
            case Tick():
                return self._tick(now)
            case Connected():
                return [*self._talk.connected(event, now)]
            case Disconnected():
                self._talk.lost()
                if self._upload:
                    self._upload.link_lost()
                return []
            case Refused():
                return self._die(
                    f"the broker refuses this device: {event.reason}", "check its credentials"
                )
            case Described():
                return self._described(event, now)
            case Trained():
                return self._trained(event, now)
            case TrainingStopped():
                return self._stopped(event, now)
            case Leave():
                self._leaving = True
                return self._drop_round() + self._next(now)

    # -- conversation ---------------------------------------------------------

    def _tick(self, now: float) -> list[DeviceEffect]:
        effects: list[DeviceEffect] = []
        talk = self._talk
        if not talk.link:
            return effects
        if talk.at is not None and now >= talk.at:
            if not talk.welcome:
                effects += talk.hello(now)
            else:
                talk.due()
                effects += self._next(now)
        if talk.welcome and self._fetch and now >= self._fetch.wake:
            effects += self._fetch.ask(now)
        if talk.welcome and self._upload and now >= self._upload.wake:
            effects += self._upload.offer(now)
        if self._listening and now >= talk.listen_at:
            effects += talk.listen(now)
        return effects

    def _received(self, event: Received, now: float) -> list[DeviceEffect]:
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

    def _control(self, message: FromServer, now: float) -> list[DeviceEffect]:
        match message:
            case Welcome() if message.boot == self._talk.boot:
                return self._welcomed(message, now)
            case Train():
                return self._asked(message, now)
            case Busy():
                return self._busy(message, now)
            case Grant() if self._upload and message.uid == self._upload.pending.uid:
                return list(self._upload.granted(message, now))
            case Ack() if self._upload and message.uid == self._upload.pending.uid:
                return list(self._upload.acknowledged(message, now))
            case Receipt():
                return self._receipt(message, now) + self._next(now)
            case Reject():
                return self._rejected(message, now)
        return []

    def _welcomed(self, message: Welcome, now: float) -> list[DeviceEffect]:
        if self._talk.welcome or message.epoch < (self._store.epoch or 0):
            return []
        self._talk.welcomed(now)
        effects: list[DeviceEffect] = [Report("welcome", {"epoch": message.epoch})]
        if message.receipt:
            effects += self._receipt(message.receipt, now)
        effects += self._epoch(message.epoch)
        if self._fetch:
            effects += self._fetch.ask(now)
        if self._upload:
            self._upload.begin_anew()  # the aggregator may be another process than before
            effects += self._upload.offer(now)
        return effects + self._next(now)

    def _rejected(self, message: Reject, now: float) -> list[DeviceEffect]:
        if not self._talk.is_meant(message):
            return []  # it answers somebody else, or what this device was
        match message.code:
            case "version" | "fenced":
                return self._die(*self._talk.farewell(message))
            case "restored":
                self._store.enrol_anew()
                self._upload = self._fetch = None
                self._training = None
                return [Report("enrolled_anew", {"why": message.reason}), *self._talk.hello(now)]
            case "unknown":
                return [*self._talk.hello(now)] if self._talk.welcome else []

    def _die(self, what: str, repair: str) -> list[DeviceEffect]:
        self.fatal = FleetError(what, repair=repair)
        self._training = None
        return [Report("fatal", {"error": str(self.fatal)})]

    # -- rounds ---------------------------------------------------------------

    def _announcement(self, raw: bytes, now: float) -> list[DeviceEffect]:
        message: ToAll = wire.unpack_again(raw, ToAll)
        effects: list[DeviceEffect] = []
        again, self._heard = raw == self._heard, raw
        self._talk.heard(now)
        if self._talk.link and (again or not self._talk.welcome):
            # Said again, or before a welcome: the aggregator has just come, or come back.
            effects += self._talk.hello(now)
        if again:
            return effects
        if self._talk.welcome and self._upload:
            effects += self._upload.offer(now)  # the round went on: was it counted?
        if isinstance(message, Idle):
            effects += self._drop_round()
            self._announced = None
            return [*effects, Report("idle", {"reason": message.reason, "round": message.round})]
        wanted = [message]
        if self._working and (self._fetch or self._training) and self._working.outlives(message):
            wanted.append(self._working.round)
        else:
            effects += self._drop_round()
        self._announced = None  # should it be one that this version cannot or will not train for
        self._announced = Announced.read(message, raw)
        self._cache.retain({blob.sha256 for round_ in wanted for blob in round_.blobs})
        return effects + self._next(now)

    def _drop_round(self) -> list[DeviceEffect]:
        """Let go of a round that is over; an update that is already pending stays."""
        effects: list[DeviceEffect] = list(self._fetch.cancel()) if self._fetch else []
        self._fetch = self._training = None
        self._talk.let_go()
        return effects

    def _epoch(self, epoch: int) -> list[DeviceEffect]:
        """Enter a control epoch that is new; there is no way back to an older one."""
        if epoch <= (self._store.epoch or 0):
            return []
        self._store.new_epoch(epoch)
        self._upload = None
        self._training = None  # its control was of the old epoch
        return [Report("epoch", {"epoch": epoch})]

    def _next(self, now: float) -> list[DeviceEffect]:
        """Begin what there is to do, unless something is being done."""
        talk = self._talk
        if not talk.ready or self._upload or self._fetch or self._training or self.left:
            return []
        if self._telling.counting:
            return []
        pending = self._store.unsent()
        if pending:
            self._upload = Upload(self._topics, self._device, talk.who, pending, self._part_size())
            return list(self._upload.offer(now))
        if self._leaving and talk.at is not None:
            return []
        if self._leaving:
            self._store.save_pending(leave_of(self._store))
            return self._next(now)
        announced = self._announced
        if (
            not announced
            or talk.joining
            or talk.declining
            or announced.round.epoch < (self._store.epoch or 0)
            or announced.base in (self._store.last_base, self._given_up)
        ):
            return []
        effects = self._epoch(announced.round.epoch)
        reason = self._consent()
        if reason:
            return [*effects, *talk.decline(announced, reason, now)]
        counting = self._telling.begin(announced.round.asking)
        if counting:
            return [*effects, counting]
        return [*effects, *talk.join(announced, now)]

    def _described(self, event: Described, now: float) -> list[DeviceEffect]:
        news, report = self._telling.described(event)
        # Joined is when that is known: the hello is answered first.
        say = self._talk.hello(now) if news and self._talk.link else []
        return [report, *(say or self._next(now))]

    def _part_size(self) -> int:
        size = self._announced.round.part_size if self._announced else 65536
        most = self._talk.max_payload
        return min(size if most is None else max(1024, min(size, most - 64)), self._good_for)

    def _busy(self, message: Busy, now: float) -> list[DeviceEffect]:
        talk, announced = self._talk, self._announced
        if self._upload and message.uid == self._upload.pending.uid:
            self._upload.busy(message, now)
        elif talk.joining and announced and message.round == announced.round.round:
            talk.at = now + message.after
            facts = {"round": message.round, "after": message.after, "reason": message.reason}
            return [Report("busy", facts)]
        return []

    def _asked(self, message: Train, now: float) -> list[DeviceEffect]:
        announced = self._announced
        if not announced or message.base != announced.base or not self._talk.joining:
            return []
        self._talk.asked()
        self._working = announced
        self._seconds = message.seconds
        round_ = announced.round
        fetch = Fetch(
            self._topics,
            self._device,
            self._talk.who,
            blobs=round_.blobs,
            kept=round_.plan,
            part_size=round_.part_size,
            cache=self._cache,
        )
        if fetch.done:
            return [self._start(announced)]
        self._fetch = fetch
        return list(fetch.begin(now))

    def _blob(self, address: Address, raw: bytes, now: float) -> list[DeviceEffect]:
        if not self._fetch or not self._working:
            return []
        effects: list[DeviceEffect] = list(self._fetch.part(address, raw, now))
        if self._fetch.done:
            effects.append(Report("fetched", {"bytes": self._fetch.received}))
            self._fetch = None
            effects.append(self._start(self._working))
        return effects

    def _start(self, announced: Announced) -> StartTraining:
        self._training = announced.base
        return StartTraining(announced, self._seconds)

    def _stopped(self, event: TrainingStopped, now: float) -> list[DeviceEffect]:
        if event.base != self._training or not self._working:
            return []
        self._training = None
        self._given_up = event.base
        return [*self._talk.abort(self._working, event.reason), *self._next(now)]

    def _trained(self, event: Trained, now: float) -> list[DeviceEffect]:
        announced, outcome = self._working, event.outcome
        if event.base != self._training or not announced:
            return []
        self._training = None
        round_ = announced.round
        self._store.save_pending(
            update_of(
                self._store,
                announced,
                outcome,
                event.holdout,
                event.turn.judged if event.turn else None,
            ),
            plan=round_.plan.sha256,
            kept=None if outcome.kept is None else outcome.kept.astype("<f4").tobytes(),
            residual=outcome.residual,
            memory=memory_of(announced.algorithm, outcome),
        )
        return [Report("trained", {"round": round_.round} | event.facts), *self._next(now)]

    def _receipt(self, message: Receipt, now: float) -> list[DeviceEffect]:
        sent = self._upload.sent if self._upload else 0
        leave = self._upload is not None and self._upload.pending.base == NO_BASE
        if not self._store.settle(message.uid, counted=message.counted, reason=message.reason):
            return []
        if self._upload:
            self._good_for = self._upload.next_part_size
        self._upload = None
        self.left = self.left or (leave and message.counted)
        if leave and not self.left:
            self._talk.refused_to_leave(now)
        facts = {"round": message.round, "counted": message.counted, "reason": message.reason}
        return [Report("left" if self.left else "settled", facts | {"bytes": sent})]
