"""One simulated run: the aggregator and what becomes of its rounds; an engine has the clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.errors import FleetError, UsageError
from kellet.sdk.local_int8 import Int8Stepping, int8_steps
from kellet.sdk.personal import Personal
from kellet.sdk.plan import Evaluator, Plan
from kellet.sdk.protocol.effects import Publish, Report, Tick
from kellet.sdk.protocol.topics import Topics
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
from kellet.server.simulate.client import EPOCH
from kellet.server.simulate.crew import Engine, Terms, enlist, nonce_of
from kellet.server.simulate.engines import EngineName, check_engine, start
from kellet.server.simulate.exchange import Exchange
from kellet.server.simulate.kinds import Clients, Cohort, Kind, offers, selection_of
from kellet.server.sums import ExactSum, gap_between
from kellet.server.uploads import Spool

__all__ = ["RoundAbandoned", "Simulation"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class RoundAbandoned(FleetError):
    """None of a round's clients had an update to send: the models became infinite, say."""


class Simulation:
    """The aggregator, the broker and the clock of one run. ``run`` may be called once.

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
        holdout: float | Clients = 0.0,
        test: tuple[ArrayLike, ArrayLike] | None = None,
        initial: State | None = None,
        check: Literal["round", "event"] = "round",
        keep_models: bool = False,
        on_round: Callable[[RoundRecord], None] | None = None,
        on_model: Callable[[RoundRecord, F32], None] | None = None,
        stepping: Int8Stepping = int8_steps,
        engine: EngineName = "inline",
        workers: int | None = None,
    ) -> None:
        check_engine(engine, workers)
        if not clients:
            raise UsageError("a simulation without clients", repair="give at least one")
        kinds = {name: (kinds or {}).get(name, Kind()) for name in clients}
        self.plan = plan
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
        self._aborts: list[str] = []
        schemes, codecs = offers(kinds.values())
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
        controls = initial_controls(initial, clients, plan) if initial else {}
        if initial:
            self._adopt(initial, controls, seed)
        self._exchange = Exchange(topics, config.worker, self._do)
        self.server = AggregatorMachine(
            config,
            plan,
            ledger=self.ledger,
            blobs=self._blobs,
            spool=Spool(),
            clock=lambda: self._exchange.now,
        )
        enlisted = enlist(plan, clients, kinds, seed=seed, holdout=holdout, controls=controls)
        terms = Terms(plan, config.fleet, stepping)
        self._engine: Engine = start(engine, terms, enlisted, algorithm, workers)
        self._devices = tuple(enlisted)
        self._exchange.connect(self._engine, enlisted)

    def run(self) -> History:
        """Until the last round is closed and every device is settled."""
        try:
            self._run_rounds()
            return self._history()
        finally:
            self._engine.close()

    def _run_rounds(self) -> None:
        exchange = self._exchange
        while True:
            while exchange.pump():
                if self._check == "event":
                    exchange.flush()
                    self._hold_invariant()
            if self.server.finished and exchange.idle:
                return
            who = exchange.pass_time()
            if who is None:
                raise FleetError(
                    "the simulation stands still",
                    why="no machine waits for anything, and the rounds are not done",
                    repair="does the cohort function name enrolled clients in every round?",
                )
            if not who:
                self._do(Tick())

    def _history(self) -> History:
        self._hold_invariant()
        counted, _ = self.ledger.totals()
        records = [self._records[r] for r in sorted(self._records)]
        c_i = self._engine.controls()
        judged = self._engine.metrics(self.server.model)
        return History(
            rounds=records,
            model=self.server.model,
            c=self._c(),
            c_i={device: kernels.from_grid(c_i[device]) for device in self._devices},
            digest=self.server.digest.hex(),
            control_gap=self._gap,
            updates_counted=counted,
            updates_refused=self.server.refused,
            models=self._models,
            controls=self._controls,
            clients={device: judged[device] for device in self._devices if device in judged},
            personal=self._engine.personal() if self._keep else {},
        )

    def _c(self) -> F32:
        return self.server.control.mean(self.server.control_weight).astype(np.float32)

    def evaluator(self) -> Evaluator:
        """The one evaluator, which test and clients share."""
        if self._evaluator is None:
            self._evaluator = self.plan.evaluator()
        return self._evaluator

    def _do(self, event: AggregatorEvent) -> None:
        link = self._exchange.server
        for effect in self.server.step(event, self._exchange.now):
            match effect:
                case Publish():
                    link.publish(
                        effect.topic, effect.payload, retain=effect.retain, bulk=effect.bulk
                    )
                case RoundClosed():
                    self._closed(effect)
                case Report(kind="abort"):
                    self._aborts.append(f"{effect.data['device']}: {effect.data['reason']}")
                case Evaluate():
                    self._evaluate(effect)
        self._exchange.alarm(self.server.wake)

    def _closed(self, effect: RoundClosed) -> None:
        record = RoundRecord(round=effect.round, **effect.summary)
        if record.state != "closed":
            raise RoundAbandoned(
                f"round {effect.round} was abandoned: none of its clients had an update to send",
                why="; ".join(self._aborts[-3:]) or f"it asked {len(record.asked)} clients",
                repair="lower local_lr, or look at the data"
                if self._aborts
                else "does the selection name clients? does the server half weigh them above 0?",
            )
        self._records[effect.round] = record
        self._hold_invariant()
        if self._keep:
            self._models.append(self.server.model.copy())
            self._controls.append(self._c())
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

    def _hold_invariant(self) -> None:
        receipts = ((uid, self.ledger.receipt(uid)) for uid in self._exchange.pending)
        counted = {uid for uid, receipt in receipts if receipt is not None and receipt.counted}
        weights = {d: w for d in self._devices if (w := self.server.weight_of(d)) != 1}
        total = self._engine.committed(counted, weights) or ExactSum(self.plan.n_train)
        gap = gap_between(self.server.control, total)
        self._gap = max(self._gap, gap)
        if gap:
            raise FleetError(
                f"C and the sum of the c_i are {gap} grid steps apart",
                why="an update was lost or counted twice",
                repair="this is a fault in Kellet: please report it with the seed",
            )

    def _adopt(self, initial: State, controls: dict[str, I64], seed: int) -> None:
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
                    nonce=nonce_of(seed, device),
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
