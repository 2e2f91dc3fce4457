"""A whole fleet in one process: the same machines, a memory broker, virtual time.

What runs here is what runs on devices and beside the broker; only the drivers
differ. The same seed gives the same digest.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kellet import kernels
from kellet.sdk import algorithms as sdk_algorithms
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import DeviceMachine, StartTraining, Trained, TrainingStopped
from kellet.sdk.errors import DataError, FleetError, UsageError
from kellet.sdk.plan import Plan
from kellet.sdk.protocol.effects import Publish, Report, Subscribe, Tick, Unsubscribe
from kellet.sdk.protocol.topics import Topics, check_id
from kellet.sdk.store import Store
from kellet.sdk.trainer import Data, TrainingFailed, train
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
from kellet.server.cohort import Sample, Schedule, Selection
from kellet.server.config import FleetConfig
from kellet.server.history import (
    History,
    RoundRecord,
    State,
    initial_controls,
    initial_model,
)
from kellet.server.ledger import Ledger, Member
from kellet.server.sums import ExactSum, control_gap
from kellet.server.uploads import Spool

__all__ = ["History", "RoundRecord", "Simulation", "State", "simulate"]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Clients = Mapping[str, tuple[ArrayLike, ArrayLike]]
Cohort = int | Callable[[int, Sequence[str]], Collection[str]] | None
EPOCH = 1


def simulate(
    plan: Plan | str,
    clients: Clients,
    algorithm: FedAvg | str = "scaffold",
    *,
    rounds: int = 10,
    cohort: Cohort = None,
    seed: int = 0,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    initial: State | None = None,
    check: Literal["round", "event"] = "round",
    keep_models: bool = False,
    on_round: Callable[[RoundRecord], None] | None = None,
) -> History:
    """Train ``plan`` over ``clients`` with the product's own machines, in this process.

    ``clients`` maps an id to that client's (x, y): float32 [n, *input], int64 [n].
    ``algorithm`` is a name (with its defaults) or a value of
    ``kellet.sdk.algorithms``. ``cohort``: how many clients each round asks (by
    ``seed``), a function of (round, ids) that names them, or None for all.
    ``check="event"`` holds the invariant after every message, at a price. Raises
    ``FleetError`` where it breaks, and the errors of bad data.
    """
    return Simulation(
        Plan.open(plan) if isinstance(plan, str) else plan,
        clients,
        sdk_algorithms.make(algorithm) if isinstance(algorithm, str) else algorithm,
        rounds=rounds,
        cohort=cohort,
        seed=seed,
        test=test,
        initial=initial,
        check=check,
        keep_models=keep_models,
        on_round=on_round,
    ).run()


class Simulation:
    """The machines, the broker and the clock of one run. ``run`` may be called once."""

    def __init__(
        self,
        plan: Plan,
        clients: Clients,
        algorithm: FedAvg,
        *,
        rounds: int,
        cohort: Cohort,
        seed: int,
        test: tuple[ArrayLike, ArrayLike] | None,
        initial: State | None,
        check: Literal["round", "event"],
        keep_models: bool,
        on_round: Callable[[RoundRecord], None] | None,
    ) -> None:
        if not clients:
            raise UsageError("a simulation without clients", repair="give at least one")
        self.plan = plan
        self.now = 0.0
        self.broker = MemoryBroker()
        self.session = plan.session()
        self._check = check
        self._keep = keep_models
        self._on_round = on_round
        self._gap = 0
        self._records: dict[int, RoundRecord] = {}
        self._models: list[F32] = []
        self._controls: list[F32] = []
        self._evaluator = plan.evaluator() if test is not None else None
        self._test = plan.check_data(*test) if test is not None else None
        self.ledger = Ledger()
        self._blobs = Blobs()
        self._alarms: list[tuple[float, int, str]] = []
        self._aborts: list[str] = []
        config = FleetConfig(
            fleet="simulation",
            algorithm=algorithm,
            rounds=rounds,
            target=len(clients),
            quorum=1,
            deadline=1000.0,
            over_select=1.0,
            min_members=len(clients),
            part_size=1 << 20,
            admission=1 << 30,
            seed=seed,
            selection=_selection(cohort, seed, len(clients)),
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
        self.devices = {
            device: _Client(
                self,
                topics,
                device,
                data=_checked(plan, device, data),
                nonce=nonces[device],
                control=controls.get(device),
            )
            for device, data in clients.items()
        }
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
        )

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
            raise FleetError(
                f"round {effect.round} was abandoned: none of its clients had an update to send",
                why="; ".join(self._aborts[-3:]),
                repair="lower local_lr, or look at the data",
            )
        self._records[effect.round] = record
        self._hold_invariant()
        if self._keep:
            self._models.append(self.server.model.copy())
            self._controls.append(self.server.control.mean(self.server.members).astype(np.float32))
        if self._on_round and self._evaluator is None:
            self._on_round(record)

    def _evaluate(self, effect: Evaluate) -> None:
        if self._evaluator is None or self._test is None:
            return
        metrics = self._evaluator.evaluate(effect.model, *self._test)
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
                    audit=kernels.signed_digest(c_i, EPOCH),
                    seen=0.0,
                )
                for device, c_i in controls.items()
            )
        )


class _Client:
    """Drives one device's machine."""

    def __init__(
        self,
        simulation: Simulation,
        topics: Topics,
        device: str,
        *,
        data: Data,
        nonce: bytes,
        control: I64 | None,
    ) -> None:
        self._simulation = simulation
        self._topics = topics
        self._device = check_id("client", device)
        self._data = data
        self.store = Store(device, nonce=nonce)
        if control is not None:
            self.store.adopt(EPOCH, control)
        self._cache = BlobCache()
        self._cache.put(simulation.plan.raw)
        boot = hashlib.sha256(nonce + b"boot").digest()[:8]
        self.machine = DeviceMachine(topics, self.store, self._cache, boot=boot)
        self._link: MemoryTransport | None = None

    def connect(self) -> None:
        self._link = MemoryTransport(
            self._simulation.broker,
            self._device,
            self.take,
            subscriptions=self._topics.device_filters(self._device),
        )

    def take(self, event: Any) -> None:
        """Step the machine and carry out what it asks."""
        assert self._link is not None
        for effect in self.machine.step(event, self._simulation.now):
            match effect:
                case Publish():
                    self._link.publish(
                        effect.topic, effect.payload, retain=effect.retain, bulk=effect.bulk
                    )
                case Subscribe():
                    self._link.subscribe(effect.topic_filter)
                case Unsubscribe():
                    self._link.unsubscribe(effect.topic_filter)
                case StartTraining():
                    self.take(self._train(effect))
                case Report(kind="fatal"):
                    raise FleetError(f"client {self._device}: {effect.data['error']}")
        self._simulation.alarm(self.machine.wake, self._device)

    def _train(self, effect: StartTraining) -> Trained | TrainingStopped:
        plan, announced = self._simulation.plan, effect.announced
        round_ = announced.round
        control = round_.control
        kept = self.store.kept(round_.plan.sha256)
        try:
            outcome = train(
                self._simulation.session,
                announced.algorithm,
                self._data,
                x=np.frombuffer(self._cache[round_.model.sha256], "<f4"),
                n_train=plan.n_train,
                n_update=plan.n_update,
                c=np.frombuffer(self._cache[control.sha256], "<f4") if control else None,
                c_i=self.store.control(plan.n_train) if control else None,
                seed=round_.seed,
                device=self._device,
                round_=round_.round,
                local=plan.local,
                kept=None if kept is None else np.frombuffer(kept, "<f4"),
            )
        except TrainingFailed as error:
            return TrainingStopped(announced.base, str(error))
        return Trained(announced.base, outcome)

    def committed(self) -> I64:
        """c_i as counted: the stored one, or the pending one if the ledger has counted it."""
        pending = self.store.pending()
        if pending is not None and pending.c_i_next is not None:
            receipt = self._simulation.ledger.receipt(pending.uid)
            if receipt is not None and receipt.counted:
                return pending.c_i_next
        return self.store.control(self._simulation.plan.n_train)


def _checked(plan: Plan, device: str, data: tuple[ArrayLike, ArrayLike]) -> Data:
    try:
        return Data(*plan.check_data(*data))
    except DataError as error:
        what = f"client {device!r}: {error.what}"
        raise DataError(what, why=error.why, repair=error.repair) from None


def _selection(cohort: Cohort, seed: int, clients: int) -> Selection:
    if cohort is None:
        return Sample(clients, seed)
    if callable(cohort):
        return Schedule(cohort)
    if not 1 <= cohort <= clients:
        raise UsageError(
            f"cohort = {cohort}", why=f"there are {clients} clients", repair=f"use 1 to {clients}"
        )
    return Sample(cohort, seed)
