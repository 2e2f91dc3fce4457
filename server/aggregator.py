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

from kellet.sdk.errors import FleetError, ProtocolError
from kellet.sdk.plan import Plan
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Effect, Publish, Report, Tick
from kellet.sdk.protocol.messages import (
    Abort,
    Decline,
    FromDevice,
    Get,
    Hello,
    Idle,
    Join,
    Offer,
    Reject,
    Round,
    State,
)
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.transport.base import Connected, Disconnected, Received, Refused
from kellet.server import algorithms, optimizers
from kellet.server.announcing import Announcer, Standing, vector_bytes
from kellet.server.blobs import Blobs
from kellet.server.config import FleetConfig
from kellet.server.counting import Counting
from kellet.server.downloads import Downloads
from kellet.server.ledger import Ledger
from kellet.server.opened import OpenRound
from kellet.server.reception import Reception
from kellet.server.roster import Roster
from kellet.server.selection.chooser import Chooser
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
    ) -> None:
        self.config = config
        self.plan = plan
        self.topics = Topics(config.fleet)
        self._ledger = ledger
        self._blobs = blobs
        self._announcer = Announcer(config, plan, blobs, ledger)
        self._roster = Roster(ledger, clock, config.member_ttl)
        self._chooser = Chooser(config.selection, self._announcer.question, ledger, self._roster)
        self._reception = Reception(self.topics, self._roster, config.deadline)
        self._downloads = Downloads(self.topics, blobs.open)
        self._traffic = {"up": 0, "down": 0}
        self._round: OpenRound | None = None
        self._last_public: bytes | None = None
        self.finished = False
        self._news: list[AggregatorEffect] = []
        self._found()
        self._load(spool)

    # -- state ----------------------------------------------------------------

    def _found(self) -> None:
        """The first entry of a fresh ledger."""
        if self._ledger.fleet() is None:
            model = self.plan.initial_view()[: self.plan.n_update]
            digest = self._blobs.put(vector_bytes(model))
            self.plan.release()
            self._ledger.found(self.plan.id, digest, ExactSum(self.plan.n_train).limbs)

    def _load(self, spool: Spool) -> None:
        """Take the fleet up where the ledger left it."""
        state = self._ledger.fleet()
        assert state is not None
        plan, epoch, self._number, self._closed, self._digest = state
        if plan != self.plan.id:
            raise FleetError(
                f"this state belongs to plan {plan.hex()[:12]}, not to {self.plan.hex_id[:12]}",
                why="controls and sums of one plan mean nothing to another",
                repair="use the same plan, or another --state directory",
            )
        self.model: F32 = self.plan.completed(
            np.frombuffer(self._announcer.blob(self._digest), "<f4")
        )
        with self._ledger.control() as limbs:
            control = ExactSum.load(limbs)
        self._counting = Counting(
            self._announcer.shapes,
            self.topics,
            ledger=self._ledger,
            roster=self._roster,
            spool=spool,
            worker=self.config.worker,
            admission=self.config.admission,
            control=control,
            epoch=epoch,
        )
        last = self._ledger.last_announcement()
        changed = self._announcer.changed_since(last) if last else {}
        if changed:  # training goes on with other settings than before: allowed, but not unsaid
            self._news.append(Report("settings_changed", {"changed": changed}))
        row = self._ledger.current_round()
        if row is not None:
            # The same announcement, the same sums: the round ends as if nothing had been.
            message: Round = wire.unpack(row.announcement, Round)
            chosen = row.summary.get("chosen")
            self._round = self._announcer.open(
                message, row.announcement, None if chosen is None else frozenset(chosen)
            )
        self._counting.replay(self._round)

    @property
    def members(self) -> int:
        """N, the enrolled fleet."""
        return self._roster.size()

    @property
    def control_weight(self) -> int:
        """The sum of the weights of all controls, over which c is C's mean: N where all are 1."""
        return self._roster.control_weight(weighted=self.config.algorithm.weighs_controls)

    def weight_of(self, device: str) -> int:
        """The weight with which a device's control is in C."""
        member = self._roster.member(device)
        return member.weight if member else 1

    @property
    def digest(self) -> bytes:
        """SHA-256 of the model's float32 bytes, without the frozen tensors."""
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
        of_round = self._round.wake if self._round else None
        times = [self._downloads.wake, self._counting.wake, of_round]
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
                copies = len(self._roster.enrolled) if to_all else 1
                self._traffic["down"] += copies * len(effect.payload)
        return effects

    def _connected(self, now: float) -> list[AggregatorEffect]:
        self._last_public = None  # the broker may have forgotten what it retained
        news, self._news = self._news, []
        if self._round is None:
            return news + self._advance(now)
        self._round.published(now)
        # A round that had all it needs when this process died closes now.
        said = Publish(self.topics.round, self._round.raw, retain=True)
        return news + self._counted([said], now)

    def _tick(self, room: int, now: float) -> list[AggregatorEffect]:
        self._counting.tick(now)
        effects: list[AggregatorEffect] = [*self._downloads.tick(room, now)]
        effects += self._drawn(now)
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
                    state: State = wire.unpack(event.payload, State)
                    self._reception.hint(address.device, state, self._round)
        except wire.VersionMismatch as error:
            reject = Reject(code="version", reason=str(error))
            return [self._reception.say(address.device, reject)]
        except ProtocolError as error:
            return [Report("refused", {"device": address.device, "error": str(error)})]
        return []

    def _request(self, device: str, message: FromDevice, now: float) -> list[AggregatorEffect]:
        if isinstance(message, Hello):
            return self._hello(device, message, now)
        rejected = self._reception.stranger(device, message)
        if rejected:
            return [*rejected]
        opened = self._round
        match message:
            case Join():
                effects = self._reception.join(device, message, opened, now) + self._drawn(now)
            case Decline():
                effects = self._reception.decline(device, message, opened) + self._drawn(now)
            case Offer():
                effects = self._counting.offer(device, message, opened, now)
            case Get():
                # The size that was announced: a device counts its parts by it.
                announced = opened.message.part_size if opened else self.config.part_size
                self._downloads.get(device, message.sha256, message.missing, announced, now)
                return []
            case Abort():
                effects = self._reception.abort(device, message, opened)
        return self._counted(effects, now)

    def _hello(self, device: str, message: Hello, now: float) -> list[AggregatorEffect]:
        welcome, effects = self._reception.hello(device, message, self.epoch)
        if welcome:
            self._counting.forget(device, message.pending)
        return [*effects, *(self._advance(now) if self._round is None else [])]

    def _counted(self, effects: list[Effect], now: float) -> list[AggregatorEffect]:
        """Close the round early if nothing else is worth waiting for after these."""
        opened, enrolled = self._round, self._roster.enrolled
        full = opened is not None and opened.cohort.complete(opened.message.quorum, enrolled)
        return [*effects, *(self._close(now) if full else [])]

    # -- rounds -----------------------------------------------------------------

    def _drawn(self, now: float) -> list[Effect]:
        """Ask some of those that are willing, where it is time to draw them."""
        opened = self._round
        if opened is None or not opened.cohort.gathering:
            return []
        cohort = opened.cohort
        if now < opened.draws and not cohort.answered(self._roster.reachable):
            return []
        drawn = self._chooser.draw(opened.number, cohort.waiting, cohort.free)
        return self._reception.draw(drawn, opened, now)

    def _advance(self, now: float) -> list[AggregatorEffect]:
        """Announce the next round, or say why there is none.

        While it waits this is asked at every hello of a fleet that comes, so who is silent is
        looked for only once a round could open.
        """
        if self._closed >= self.config.rounds:
            self.finished = True
            return self._idle("finished")
        if len(self._roster.enrolled) < self.config.min_members:
            return self._idle("waiting")
        silent = self._roster.silent(self.config.member_ttl)
        share = len(silent) / max(1, self._roster.size())
        if self.config.algorithm.controls and share > self.config.max_silent:
            # What those added to C biases every step of the others, and nothing but a new epoch
            # takes it out.
            why = Report("silent", {"devices": silent, "members": self._roster.size()})
            return [why, *self.new_epoch(now)]
        self._roster.forget_silent(self.config.member_ttl)
        if len(self._roster.enrolled) < self.config.min_members:
            return self._idle("waiting")
        number = self._number + 1
        chosen = self._chooser.choose(number)
        standing = Standing(
            round=number,
            epoch=self.epoch,
            members=self._roster.size(),
            control_weight=self.control_weight,
            model=self.model,
            digest=self._digest,
            control=self.control,
            residual=self._ledger.residual(),
        )
        made = self._announcer.make(standing, chosen)
        self._ledger.open_round(number, made.raw, chosen, made.residual)
        self._number = number
        self._round = self._announcer.open(made.message, made.raw, chosen)
        self._round.published(now)
        self._last_public = made.raw
        return [
            Publish(self.topics.round, made.raw, retain=True),
            Report("round_opened", {"round": number, "members": made.message.members}),
        ]

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
        closed = opened.cohort.updates >= opened.message.quorum and opened.weight > 0
        moved: algorithms.Moved | None = None
        if closed:
            server_lr, half = opened.terms.algorithm.server_lr, opened.half
            # To weigh the fleet takes a look at every member.
            fleet = (
                algorithms.Fleet(self.control, self.control_weight) if half.uses_control else None
            )
            moved = algorithms.apply_mean(
                self.model,
                opened.total,
                opened.weight,
                optimizers.from_wire(opened.message.optimizing, server_lr),
                self.plan.n_train,
                self._ledger.moments(),
                half=half,
                updates=opened.updates,
                fleet=fleet,
            )
            self.model = moved.model
            self._digest = self._blobs.put(vector_bytes(self.model[: self.plan.n_update]))
            self._closed += 1
        summary = self._ended(opened, "closed" if closed else "abandoned", now)
        summary["step_norm"] = moved.step_norm if moved else None
        self._ledger.close_round(
            opened.number,
            closed=closed,
            model=self._digest,
            control=self.control.limbs,
            summary=summary,
            moments=moved.kept if moved else None,
        )
        self._round = None
        opened.over()
        self._counting.checkpointed(go_on=opened.message.buffering is not None)
        evaluate = [Evaluate(opened.number, self.model)] if closed else []
        return [RoundClosed(opened.number, summary), *evaluate, *self._advance(now)]

    def new_epoch(self, now: float) -> list[AggregatorEffect]:
        """Begin a control epoch: C = 0, every device sets c_i = 0 when it first sees it.

        A round that is open is abandoned: its controls are of the old epoch.
        """
        epoch, opened = self.epoch + 1, self._round
        summary = self._ended(opened, "abandoned", now) if opened else {}
        self._ledger.new_epoch(epoch, ExactSum(self.plan.n_train).limbs, summary)
        self._roster.reload()
        self._counting.new_epoch(epoch)
        self._round = None
        ended: list[AggregatorEffect] = []
        if opened:
            opened.over()
            ended = [RoundClosed(opened.number, summary)]
        return [Report("epoch", {"epoch": epoch}), *ended, *self._advance(now)]

    def _ended(self, opened: OpenRound, state: str, now: float) -> dict[str, Any]:
        """A round's summary, once it has ended; its turns are among those that had one."""
        up, down = self.traffic
        summary = opened.summary(now)
        self._chooser.ended(opened.number, summary, opened.samples)
        return summary | {
            **self._chooser.fairness(),
            "state": state,
            "members": opened.message.members,
            "model": self._digest.hex(),
            "uplink_bytes": up,
            "downlink_bytes": down,
        }
