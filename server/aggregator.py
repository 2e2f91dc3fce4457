"""The aggregator's state machine: no sockets, no threads, no clock.

``AggregatorMachine.step(event, now)`` answers an event with effects. What an effect
rests on is in the ledger before the effect is returned, so a driver may die
between any two of them: started again over the same state directory, the machine
goes on in the same round with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.errors import FleetError, ProtocolError, UsageError
from kellet.sdk.plan import Plan
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.body import body_limit
from kellet.sdk.protocol.effects import Effect, Publish, Report, Tick
from kellet.sdk.protocol.limits import MAX_PARTS
from kellet.sdk.protocol.messages import (
    Abort,
    Blob,
    Busy,
    FromDevice,
    FromServer,
    Get,
    Hello,
    Idle,
    Join,
    Offer,
    Reject,
    Round,
    State,
    Train,
    Welcome,
)
from kellet.sdk.protocol.parts import part_count
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.transport.base import Connected, Disconnected, Received, Refused
from kellet.server import algorithms
from kellet.server.blobs import Blobs
from kellet.server.config import FleetConfig
from kellet.server.counting import Counting
from kellet.server.downloads import Downloads
from kellet.server.ledger import Ledger
from kellet.server.opened import OpenRound
from kellet.server.roster import Roster
from kellet.server.sums import ExactSum
from kellet.server.uploads import Spool

__all__ = ["AggregatorEvent", "AggregatorMachine", "Evaluate", "Evaluated", "RoundClosed"]

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Effect: evaluate this model (float32 [n_params]) on the test set, if there is one."""

    round: int
    model: F32


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Event: what the evaluation of a round's model came to."""

    round: int
    loss: float
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class RoundClosed:
    """Effect: a round ended, with its summary as the ledger keeps it."""

    round: int
    summary: dict[str, Any]


AggregatorEvent = Connected | Disconnected | Refused | Received | Tick | Evaluated
AggregatorEffect = Effect | Evaluate | RoundClosed


class AggregatorMachine:
    """The server's side of the protocol (docs/protocol.md).

    ``ledger``, ``blobs`` and ``spool`` hold what must last. ``clock`` gives seconds on a clock
    that survives a restart (the age of memberships); ``now`` in ``step`` is any
    monotonic clock.
    """

    def __init__(
        self,
        config: FleetConfig,
        plan: Plan,
        *,
        ledger: Ledger,
        blobs: Blobs,
        spool: Spool,
        clock: Callable[[], float],
        initial: F32 | None = None,
    ) -> None:
        _check_parts(config.part_size, plan)
        self.config = config
        self.plan = plan
        self.topics = Topics(config.fleet)
        self._ledger = ledger
        self._blobs = blobs
        self._roster = Roster(ledger, clock)
        self._downloads = Downloads(self.topics, blobs.get)
        self._plan_blob = Blob(blobs.put(plan.raw), len(plan.raw))
        self._traffic = {"up": 0, "down": 0}
        self._round: OpenRound | None = None
        self._last_public: bytes | None = None
        self.finished = False
        self._news: list[AggregatorEffect] = []
        self._found(initial)
        self._load(spool)

    # -- state ----------------------------------------------------------------

    def _found(self, initial: F32 | None) -> None:
        """The first entry of a fresh ledger."""
        if self._ledger.fleet() is None:
            model = self.plan.initial() if initial is None else initial
            digest = self._blobs.put(_vector_bytes(model))
            self._ledger.found(self.plan.id, digest, ExactSum(self.plan.n_train).dump())

    def _load(self, spool: Spool) -> None:
        """Take the fleet up where the ledger left it."""
        state = self._ledger.fleet()
        assert state is not None
        plan, epoch, self._number, self._closed, self._digest, control = state
        if plan != self.plan.id:
            raise FleetError(
                f"this state belongs to plan {plan.hex()[:12]}, not to {self.plan.hex_id[:12]}",
                why="controls and sums of one plan mean nothing to another",
                repair="use the same plan, or another --state directory",
            )
        self.model: F32 = kernels.aligned(self.plan.n_params, np.float32)
        self.model[:] = np.frombuffer(self._blob(self._digest), "<f4")
        self._counting = Counting(
            self.plan,
            self.topics,
            ledger=self._ledger,
            roster=self._roster,
            spool=spool,
            worker=self.config.worker,
            admission=self.config.admission,
            control=ExactSum.load(control),
            epoch=epoch,
        )
        self._note_changes()
        row = self._ledger.current_round()
        if row is not None:
            # The same announcement, the same sums: the round ends as if nothing had been.
            message: Round = wire.unpack(row.announcement, Round)
            chosen = row.summary.get("chosen")
            self._round = self._opened(
                message, row.announcement, None if chosen is None else frozenset(chosen)
            )
        self._counting.replay(self._round)

    def _note_changes(self) -> None:
        """Training goes on with other settings than before: allowed, but not unsaid."""
        raw = self._ledger.last_announcement()
        if raw is None:
            return
        before: Round = wire.unpack(raw, Round)
        was = before.algorithm | {"seed": before.seed}
        now = self.config.algorithm.wire() | {"seed": self.config.seed}
        changed = {
            name: [was.get(name), now.get(name)]
            for name in sorted(was.keys() | now.keys())
            if was.get(name) != now.get(name)
        }
        if changed:
            self._news.append(Report("settings_changed", {"changed": changed}))

    def _blob(self, sha256: bytes) -> bytes:
        data = self._blobs.get(sha256)
        if data is None:
            raise FleetError(
                f"{sha256.hex()[:12]} is not in the state directory",
                repair="restore the state directory from a backup",
            )
        return data

    def _opened(self, message: Round, raw: bytes, chosen: frozenset[str] | None) -> OpenRound:
        control = None
        if message.control is not None:
            control = kernels.aligned(self.plan.n_train, np.float32)
            control[:] = np.frombuffer(self._blob(message.control.sha256), "<f4")
        return OpenRound(
            message, raw, plan=self.plan, control=control, config=self.config, chosen=chosen
        )

    @property
    def members(self) -> int:
        """N, the enrolled fleet."""
        return self._roster.size()

    @property
    def digest(self) -> bytes:
        """SHA-256 of the model's float32 bytes."""
        return self._digest

    @property
    def round(self) -> int:
        """Number of the last round that was announced."""
        return self._number

    @property
    def epoch(self) -> int:
        """The control epoch."""
        return self._counting.epoch

    @property
    def control(self) -> ExactSum:
        """C, the exact sum of all members' controls."""
        return self._counting.control

    @property
    def traffic(self) -> tuple[int, int]:
        """(uplink, downlink) payload bytes so far, as the devices send and receive them."""
        return self._traffic["up"], self._traffic["down"] + self._downloads.delivered

    @property
    def refused(self) -> int:
        """Updates answered without being counted."""
        return self._counting.refused

    @property
    def wake(self) -> float | None:
        """When the machine wants a ``Tick``."""
        times = [self._downloads.wake, self._counting.wake]
        if self._round:
            times.append(self._round.closes)
        return min((t for t in times if t is not None), default=None)

    # -- events -----------------------------------------------------------------

    def step(self, event: AggregatorEvent, now: float) -> list[AggregatorEffect]:
        """Take one event; what is to be done about it, in order."""
        match event:
            case Received():
                effects = self._received(event, now)
            case Tick():
                effects = self._tick(event.room, now)
            case Connected():
                effects = self._connected(now)
            case Evaluated():
                self._ledger.annotate(event.round, loss=event.loss, accuracy=event.accuracy)
                facts = {"round": event.round, "loss": event.loss, "accuracy": event.accuracy}
                effects = [Report("evaluated", facts)]
            case Disconnected():
                effects = [Report("link_lost", {"reason": event.reason})]
            case Refused():
                raise FleetError(
                    "the broker refuses the aggregator",
                    why=event.reason,
                    repair="check its credentials",
                )
        for effect in effects:
            if isinstance(effect, Publish) and not effect.bulk:
                to_all = effect.topic == self.topics.round
                copies = len(self._roster.active()) if to_all else 1
                self._traffic["down"] += copies * len(effect.payload)
        return effects

    def _connected(self, now: float) -> list[AggregatorEffect]:
        self._last_public = None  # the broker may have forgotten what it retained
        news, self._news = self._news, []
        return news + self._announce_again(now)

    def _announce_again(self, now: float) -> list[AggregatorEffect]:
        if self._round is None:
            return self._advance(now)
        self._round.published(now)
        # A round that had all it needs when this process died closes now.
        return self._counted([Publish(self.topics.round, self._round.raw, retain=True)], now)

    def _tick(self, room: int, now: float) -> list[AggregatorEffect]:
        effects: list[AggregatorEffect] = []
        self._counting.tick(now)
        effects += self._downloads.tick(room, now)
        if self._round and now >= self._round.closes:
            effects += self._close(now)
        return effects

    def _received(self, event: Received, now: float) -> list[AggregatorEffect]:
        address = self.topics.parse(event.topic)
        if address is None:
            return []
        if address.channel in ("req", "up"):
            self._traffic["up"] += len(event.payload)
        try:
            match address.channel:
                case "req":
                    message: FromDevice = wire.unpack(event.payload, FromDevice)
                    return self._request(address.device, message, now)
                case "up":
                    effects = self._counting.part(address.device, event.payload, self._round, now)
                    return self._counted(effects, now)
                case "state" if event.payload:
                    return self._hint(address.device, wire.unpack(event.payload, State))
        except wire.VersionMismatch as error:
            return [self._say(address.device, Reject(code="version", reason=str(error)))]
        except ProtocolError as error:
            return [Report("refused", {"device": address.device, "error": str(error)})]
        return []

    def _hint(self, device: str, state: State) -> list[AggregatorEffect]:
        member = self._roster.member(device)
        if not state.online and self._round and member and member.boot == state.boot:
            self._round.cohort.lost(device)
        return []

    def _request(self, device: str, message: FromDevice, now: float) -> list[AggregatorEffect]:
        if isinstance(message, Hello):
            return self._hello(device, message, now)
        if not self._roster.speaks_for(device, message.nonce, message.boot):
            fenced = self._roster.is_fenced(device, message.boot)
            return [
                self._say(
                    device,
                    Reject(
                        code="fenced" if fenced else "unknown",
                        reason="a newer process uses this id" if fenced else "say hello first",
                        boot=message.boot,
                        nonce=message.nonce,
                    ),
                )
            ]
        self._roster.heard(device)
        match message:
            case Join():
                return self._join(device, message, now)
            case Offer():
                return self._counted(self._counting.offer(device, message, self._round, now), now)
            case Get():
                # The size that was announced: a device counts its parts by it.
                announced = self._round.message.part_size if self._round else self.config.part_size
                self._downloads.get(device, message.sha256, message.missing, announced, now)
            case Abort():
                if self._round and self._round.number == message.round:
                    self._round.cohort.lost(device)
                return [Report("abort", {"device": device, "reason": message.reason})]
        return []

    def _hello(self, device: str, message: Hello, now: float) -> list[AggregatorEffect]:
        greeting = self._roster.hello(device, message, self.epoch)
        if isinstance(greeting.answer, Welcome):
            self._counting.forget(device, message.pending)
        effects: list[AggregatorEffect] = [self._say(device, greeting.answer)]
        effects.append(Report(greeting.news, {"device": device, "why": greeting.detail}))
        if self._round is None:
            effects += self._advance(now)
        return effects

    def _join(self, device: str, message: Join, now: float) -> list[AggregatorEffect]:
        opened = self._round
        if not opened or message.base != opened.base:
            return []  # it will see the retained announcement
        if opened.cohort.join(device):
            left = max(0.0, opened.closes - now)
            return [self._say(device, Train(round=opened.number, base=opened.base, seconds=left))]
        after = min(1.0, self.config.deadline / 4)
        if opened.cohort.chosen is not None:
            after = self.config.deadline  # the round is closed to it
        return [
            self._say(device, Busy(after=after, round=opened.number, reason="the cohort is full"))
        ]

    def _counted(self, effects: list[Effect], now: float) -> list[AggregatorEffect]:
        """Close the round early if what was just counted was the last that it needs."""
        opened = self._round
        full = opened is not None and len(opened.cohort.counted) >= opened.cohort.target
        return [*effects, *(self._close(now) if full else [])]

    # -- rounds -----------------------------------------------------------------

    def _advance(self, now: float) -> list[AggregatorEffect]:
        """Announce the next round, or say why there is none."""
        silent = self._roster.silent(self.config.member_ttl)
        if self._controls_are_stale(silent):
            why = Report("silent", {"devices": silent, "members": self._roster.size()})
            return [why, *self.new_epoch(now)]
        self._roster.forget_silent(self.config.member_ttl)
        if self._closed >= self.config.rounds:
            self.finished = True
            return self._idle("finished")
        if len(self._roster.active()) < self.config.min_members:
            return self._idle("waiting")
        number = self._number + 1
        chosen = self.config.selection.choose(number, self._roster.active())
        message = self._announcement(number, chosen)
        raw = wire.pack(message)
        self._ledger.open_round(number, raw, chosen)
        self._number = number
        self._round = self._opened(message, raw, chosen)
        self._round.published(now)
        self._last_public = raw
        return [
            Publish(self.topics.round, raw, retain=True),
            Report("round_opened", {"round": number, "members": message.members}),
        ]

    def _controls_are_stale(self, silent: list[str]) -> bool:
        """Whether too much of C belongs to devices that may never come back.

        What they added biases every step of the others, and nothing but a new epoch takes
        it out.
        """
        share = len(silent) / max(1, self._roster.size())
        return self.config.algorithm.controls and share > self.config.max_silent

    def _announcement(self, number: int, chosen: frozenset[str] | None) -> Round:
        config, plan = self.config, self.plan
        members = self._roster.size()
        control = None
        if config.algorithm.controls:
            data = _vector_bytes(algorithms.announced_control(self.control, members))
            control = Blob(self._blobs.put(data), len(data))
        keep = {self._plan_blob.sha256, self._digest}
        self._blobs.retain(keep | ({control.sha256} if control else set()))
        target = config.target if chosen is None else len(chosen)
        return Round(
            round=number,
            epoch=self.epoch,
            plan=self._plan_blob,
            model=Blob(self._digest, 4 * plan.n_params),
            control=control,
            algorithm=config.algorithm.wire(),
            weighting=config.algorithm.weighting,
            codecs=algorithms.codecs_of(config.algorithm),
            members=members,
            target=target,
            quorum=min(config.quorum, target),
            deadline=config.deadline,
            valid=config.deadline,
            part_size=config.part_size,
            seed=config.seed,
            plan_name=plan.manifest.name,
        )

    def _idle(self, reason: str) -> list[AggregatorEffect]:
        raw = wire.pack(Idle(reason=reason, round=self._number))  # type: ignore[arg-type]
        if raw == self._last_public:
            return []
        self._last_public = raw
        return [
            Publish(self.topics.round, raw, retain=True),
            Report(reason, {"round": self._number}),
        ]

    def _close(self, now: float) -> list[AggregatorEffect]:
        """The round ends: with a new model at quorum, abandoned below it. C stands in any case."""
        opened = self._round
        assert opened is not None
        closed = len(opened.cohort.counted) >= opened.message.quorum and opened.weight > 0
        if closed:
            self.model = algorithms.apply_mean(
                self.model,
                opened.total,
                opened.weight,
                opened.terms.algorithm.server_lr,
                self.plan.n_train,
            )
            self._digest = self._blobs.put(_vector_bytes(self.model))
            self._closed += 1
        summary = self._summary(opened, "closed" if closed else "abandoned", now)
        self._ledger.close_round(
            opened.number,
            closed=closed,
            model=self._digest,
            control=self.control.dump(),
            summary=summary,
        )
        self._round = None
        self._counting.checkpointed()
        effects: list[AggregatorEffect] = [RoundClosed(opened.number, summary)]
        if closed:
            effects.append(Evaluate(opened.number, self.model))
        return effects + self._advance(now)

    def new_epoch(self, now: float) -> list[AggregatorEffect]:
        """Begin a control epoch: C = 0, every device sets c_i = 0 when it first sees it.

        A round that is open is abandoned: its controls are of the old epoch.
        """
        epoch, opened = self.epoch + 1, self._round
        summary = self._summary(opened, "abandoned", now) if opened else {}
        self._ledger.new_epoch(epoch, ExactSum(self.plan.n_train).dump(), summary)
        self._roster.reload()
        self._counting.new_epoch(epoch)
        self._round = None
        effects: list[AggregatorEffect] = [Report("epoch", {"epoch": epoch})]
        if opened:
            effects.append(RoundClosed(opened.number, summary))
        return effects + self._advance(now)

    def _summary(self, opened: OpenRound, state: str, now: float) -> dict[str, Any]:
        up, down = self.traffic
        return opened.summary(now) | {
            "state": state,
            "members": opened.message.members,
            "model": self._digest.hex(),
            "uplink_bytes": up,
            "downlink_bytes": down,
        }

    def _say(self, device: str, message: FromServer) -> Publish:
        return Publish(self.topics.ctl(device), wire.pack(message))


def _check_parts(part_size: int, plan: Plan) -> None:
    shapes = Shapes.of(plan.manifest.tensors)
    largest = max(len(plan.raw), 4 * plan.n_params, body_limit(shapes))
    if part_count(largest, part_size) > MAX_PARTS:
        raise UsageError(
            f"part_size = {part_size}",
            why=f"the plan's transfers of {largest} bytes would have more than {MAX_PARTS} parts",
            repair=f"use at least {-(-largest // MAX_PARTS)}",
        )


def _vector_bytes(vector: F32) -> bytes:
    return vector.astype("<f4").tobytes()
