"""One simulated run: the machines, the broker and the clock."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.errors import FleetError, UsageError
from kellet.sdk.local_int8 import Int8Stepping, int8_steps
from kellet.sdk.personal import Personal
from kellet.sdk.plan import Evaluator, GradientSession, Int8Session, Plan
from kellet.sdk.protocol.effects import Publish, Report, Tick
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.transport.base import TransportEvent
from kellet.sdk.transport.memory import MemoryBroker, MemoryTransport
from kellet.server.aggregator import (
    AggregatorEvent,
    AggregatorMachine,
    Evaluate,
    Evaluated,
    RoundClosed,
)
from kellet.server.blobs import Blobs
from kellet.server.config import FleetConfig
from kellet.server.history import (
    History,
    RoundRecord,
    State,
    initial_controls,
    initial_model,
)
from kellet.server.ledger import Ledger, Member
from kellet.server.optimizers import ServerOptimizer
from kellet.server.schedules import CONSTANT, Schedule
from kellet.server.simulate.client import EPOCH, Client
from kellet.server.simulate.kinds import Clients, Cohort, Kind, checked, offers, selection_of
from kellet.server.sums import ExactSum, control_gap
from kellet.server.uploads import Spool

__all__ = ["RoundAbandoned", "Simulation"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class RoundAbandoned(FleetError):
    """None of a round's clients had an update to send: the models became infinite, say."""


class Simulation:
    """The machines, the broker and the clock of one run. ``run`` may be called once.

    ``kinds``: what each client can do; float32 and no codec for one that is left out.
    ``stepping`` replaces the int8 step of all clients, in experiments.
    """

    def __init__(
        self,
        plan: Plan,
        clients: Clients,
        algorithm: FedAvg,
        *,
        server_optimizer: ServerOptimizer | None = None,
        schedule: Schedule = CONSTANT,
        rounds: int,
        cohort: Cohort = None,
        seed: int = 0,
        kinds: Mapping[str, Kind] | None = None,
        downlink: Literal["f32", "q8"] = "f32",
        feedback: bool = False,
        share: float = 0.0,
        personal: Personal | None = None,
        holdout: float = 0.0,
        test: tuple[ArrayLike, ArrayLike] | None = None,
        initial: State | None = None,
        check: Literal["round", "event"] = "round",
        keep_models: bool = False,
        on_round: Callable[[RoundRecord], None] | None = None,
        on_model: Callable[[RoundRecord, F32], None] | None = None,
        stepping: Int8Stepping = int8_steps,
    ) -> None:
        if not clients:
            raise UsageError("a simulation without clients", repair="give at least one")
        kinds = {name: (kinds or {}).get(name, Kind()) for name in clients}
        self.plan = plan
        self.shapes = Shapes.of(plan.manifest.tensors)
        self.stepping = stepping
        self.now = 0.0
        self.broker = MemoryBroker()
        self._sessions: dict[str, GradientSession | Int8Session] = {}
        self._check = check
        self._keep = keep_models
        self._on_round = on_round
        self._on_model = on_model
        self._gap = 0
        self._records: dict[int, RoundRecord] = {}
        self._models: list[F32] = []
        self._controls: list[F32] = []
        self._evaluator: Evaluator | None = None
        self._test = plan.check_data(*test) if test is not None else None
        self.ledger = Ledger()
        self._blobs = Blobs()
        self._alarms: list[tuple[float, int, str]] = []
        self._aborts: list[str] = []
        schemes, codecs = offers(kinds.values())
        for scheme in schemes:
            self.session(scheme)  # a plan without that variant is refused here
        config = FleetConfig(
            fleet="simulation",
            algorithm=algorithm,
            server_optimizer=server_optimizer,
            schedule=schedule,
            rounds=rounds,
            target=len(clients),
            quorum=1,
            deadline=1000.0,
            over_select=1.0,
            min_members=len(clients),
            part_size=1 << 20,
            admission=1 << 30,
            seed=seed,
            selection=selection_of(cohort, seed, len(clients)),
            schemes=schemes,
            uplink=codecs,
            downlink=downlink,
            feedback=feedback,
            share=share,
            personal=personal,
        )
        topics = Topics(config.fleet)
        nonces = {d: hashlib.sha256(f"{seed}/{d}".encode()).digest()[:16] for d in clients}
        controls = initial_controls(initial, clients, plan) if initial else {}
        if initial:
            self._adopt(initial, controls, nonces)
        self.server = AggregatorMachine(
            config,
            plan,
            ledger=self.ledger,
            blobs=self._blobs,
            spool=Spool(),
            clock=lambda: self.now,
        )
        self.devices: dict[str, Client] = {}
        for device, samples in clients.items():
            data, held = checked(plan, device, samples, holdout)
            self.devices[device] = Client(
                self,
                topics,
                device,
                kind=kinds[device],
                data=data,
                held=held,
                nonce=nonces[device],
                control=controls.get(device),
            )
        self._link = MemoryTransport(
            self.broker,
            "aggregator",
            self._serve,
            subscriptions=topics.server_filters(config.worker),
        )
        for client in self.devices.values():
            client.connect()

    def run(self) -> History:
        """Until the last round is closed and every device is settled."""
        while True:
            while self.broker.pump(1):
                if self._check == "event":
                    self._hold_invariant()
            if self.server.finished and all(
                c.machine.doing == "nothing" for c in self.devices.values()
            ):
                break
            if not self._pass_time():
                raise FleetError(
                    "the simulation stands still",
                    why="no machine waits for anything, and the rounds are not done",
                    repair="does the cohort function name enrolled clients in every round?",
                )
        self._hold_invariant()
        counted, _ = self.ledger.totals()
        records = [self._records[r] for r in sorted(self._records)]
        n = self.plan.n_train
        return History(
            rounds=records,
            model=self.server.model,
            c=self.server.control.mean(self.server.members).astype(np.float32),
            c_i={d: kernels.from_grid(c.store.control(n)) for d, c in self.devices.items()},
            digest=self.server.digest.hex(),
            control_gap=self._gap,
            updates_counted=counted,
            updates_refused=self.server.refused,
            models=self._models,
            controls=self._controls,
            clients={
                device: found
                for device, client in self.devices.items()
                if (found := client.metrics(self.server.model))
            },
        )

    def session(self, scheme: str) -> GradientSession | Int8Session:
        """The one session of a scheme, which all clients share."""
        if scheme not in self._sessions:
            self._sessions[scheme] = self.plan.session(scheme)
        return self._sessions[scheme]

    def evaluator(self) -> Evaluator:
        """The one evaluator, which test and clients share."""
        if self._evaluator is None:
            self._evaluator = self.plan.evaluator()
        return self._evaluator

    # -- the drivers --------------------------------------------------------------

    def _serve(self, event: TransportEvent) -> None:
        self._do(event)

    def _do(self, event: AggregatorEvent) -> None:
        for effect in self.server.step(event, self.now):
            match effect:
                case Publish():
                    self._link.publish(
                        effect.topic, effect.payload, retain=effect.retain, bulk=effect.bulk
                    )
                case RoundClosed():
                    self._closed(effect)
                case Report(kind="abort"):
                    self._aborts.append(f"{effect.data['device']}: {effect.data['reason']}")
                case Evaluate():
                    self._evaluate(effect)
        self.alarm(self.server.wake, "")

    def _closed(self, effect: RoundClosed) -> None:
        record = RoundRecord(round=effect.round, **effect.summary)
        if record.state != "closed":
            raise RoundAbandoned(
                f"round {effect.round} was abandoned: none of its clients had an update to send",
                why="; ".join(self._aborts[-3:]),
                repair="lower local_lr, or look at the data",
            )
        self._records[effect.round] = record
        self._hold_invariant()
        if self._keep:
            self._models.append(self.server.model.copy())
            self._controls.append(self.server.control.mean(self.server.members).astype(np.float32))
        if self._on_model:
            self._on_model(record, self.server.model)
        if self._on_round and self._test is None:
            self._on_round(record)

    def _evaluate(self, effect: Evaluate) -> None:
        if self._test is None:
            return
        metrics = self.evaluator().evaluate(effect.model, *self._test)
        record = self._records[effect.round]
        record = RoundRecord(
            **(vars(record) | {"loss": metrics.loss, "accuracy": metrics.accuracy})
        )
        self._records[effect.round] = record
        self._do(Evaluated(effect.round, metrics.loss, metrics.accuracy))
        if self._on_round:
            self._on_round(record)

    def alarm(self, at: float | None, device: str) -> None:
        """Remember that a machine wants a tick."""
        if at is not None:
            heapq.heappush(self._alarms, (at, len(self._alarms), device))

    def _pass_time(self) -> bool:
        """Go to the next alarm that still holds; False where there is none."""
        while self._alarms:
            at, _, device = heapq.heappop(self._alarms)
            wake = self.devices[device].machine.wake if device else self.server.wake
            if wake is None or wake > at:
                continue  # it has been put off; another alarm stands for it
            self.now = max(self.now, at)
            if device:
                self.devices[device].take(Tick())
            else:
                self._do(Tick())
            return True
        return False

    def _hold_invariant(self) -> None:
        gap = control_gap(self.server.control, (c.committed() for c in self.devices.values()))
        self._gap = max(self._gap, gap)
        if gap:
            raise FleetError(
                f"C and the sum of the c_i are {gap} grid steps apart",
                why="an update was lost or counted twice",
                repair="this is a fault in Kellet: please report it with the seed",
            )

    def _adopt(self, initial: State, controls: dict[str, I64], nonces: dict[str, bytes]) -> None:
        """Write the initial state as a ledger that counted its way there."""
        total = ExactSum(self.plan.n_train)
        for c_i in controls.values():
            total.add_grid(c_i)
        x = initial_model(initial, self.plan)
        model = self._blobs.put(x.astype("<f4").tobytes())
        self.ledger.found(self.plan.id, model, total.dump(), EPOCH)
        self.ledger.write_member(
            *(
                Member(
                    device=device,
                    nonce=nonces[device],
                    state="active",
                    incarnation=0,
                    boot=bytes(8),
                    counted=1,
                    last_seq=0,
                    last_uid=bytes(16),
                    audit=kernels.linear_digest(c_i, EPOCH),
                    seen=0.0,
                )
                for device, c_i in controls.items()
            )
        )
