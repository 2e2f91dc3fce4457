"""The driver of one simulated device."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import DeviceMachine, StartTraining, Trained, TrainingStopped
from kellet.sdk.errors import FleetError
from kellet.sdk.given import Given
from kellet.sdk.holdout import Judge
from kellet.sdk.personal.turn import take_turn
from kellet.sdk.protocol.effects import Publish, Report, Subscribe, Unsubscribe
from kellet.sdk.protocol.topics import Topics, check_id
from kellet.sdk.store import Store
from kellet.sdk.trainer import Data, TrainingFailed, begin, train_from
from kellet.sdk.transport.memory import MemoryTransport
from kellet.sdk.uplink import Uplink
from kellet.server.history import ClientMetrics
from kellet.server.simulate.kinds import Kind

if TYPE_CHECKING:
    from kellet.server.simulate.simulation import Simulation

__all__ = ["EPOCH", "Client"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
EPOCH = 1


def _after(steps: int) -> Callable[[], str]:
    """What a training asks after each step: whether these many are run."""
    run = itertools.count(1)
    return lambda: "out of time" if next(run) >= steps else ""


class Client:
    """Drives one device's machine."""

    def __init__(
        self,
        simulation: Simulation,
        topics: Topics,
        device: str,
        *,
        kind: Kind,
        data: Data,
        held: Data | None,
        nonce: bytes,
        control: I64 | None,
    ) -> None:
        self._simulation = simulation
        self._topics = topics
        self._device = check_id("client", device)
        self._kind = kind
        self._data = data
        self._judge = Judge(simulation.plan, held, simulation.evaluator)
        self.store = Store(device, nonce=nonce)
        if control is not None:
            self.store.adopt(EPOCH, control)
        self._cache = BlobCache()
        self._cache.put(simulation.plan.raw)
        boot = hashlib.sha256(nonce + b"boot").digest()[:8]
        self.machine = DeviceMachine(
            topics, self.store, self._cache, boot=boot, schemes=(kind.scheme,)
        )
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
        simulation, announced = self._simulation, effect.announced
        plan, shapes, round_ = simulation.plan, simulation.shapes, announced.round
        steps = announced.algorithm.planned_steps(len(self._data))
        if self._kind.manages is not None:
            steps = self._kind.manages(round_.round, self._device, steps)
            if steps < 1:
                return TrainingStopped(announced.base, "it has time for no step")
        given = Given.take(round_, self._cache, self.store)
        x, controls = given.decode(shapes, self.store.control)
        judged = self._judge.received(x)
        session = simulation.session(self._kind.scheme)
        try:
            model = begin(
                session,
                announced.algorithm,
                x,
                shapes=shapes,
                controls=controls,
                seed=round_.seed,
                device=self._device,
                round_=round_.round,
                local=plan.local,
                kept=given.kept,
                memory=given.memory,
                int8_shift=self._kind.shift == "int8",
                stepping=simulation.stepping,
            )
            outcome = train_from(
                model,
                announced.algorithm,
                self._data,
                shapes=shapes,
                controls=controls,
                seed=round_.seed,
                device=self._device,
                round_=round_.round,
                uplink=Uplink.of(round_.codecs, self._kind.codec, given.residual),
                stop=_after(steps),
            )
        except TrainingFailed as error:
            return TrainingStopped(announced.base, str(error))
        turn = take_turn(
            announced,
            session,
            model.start,
            self._data,
            plan=plan,
            shelf=self.store.personal,
            judge=self._judge,
            kept=given.kept,
            device=self._device,
        )
        return Trained(announced.base, outcome, judged, turn)

    def metrics(self, model: F32) -> ClientMetrics | None:
        """How the fleet's model, float32 [n_params], and its own do on what it holds out."""
        plan = self._simulation.plan
        judged = self._judge.whole(model)
        if judged is None:
            return None
        own, stored = None, self.store.personal.find(plan.id)
        if stored:
            v = plan.initial()
            stored.read_into(v)
            own = self._judge.whole(v)
        return ClientMetrics(
            samples=judged.samples,
            global_loss=judged.loss,
            global_accuracy=judged.accuracy,
            personal_loss=own.loss if own else None,
            personal_accuracy=own.accuracy if own else None,
        )

    def committed(self) -> I64:
        """c_i as counted: the stored one, or the pending one if the ledger has counted it."""
        pending = self.store.pending()
        if pending is not None and pending.c_i_next is not None:
            receipt = self._simulation.ledger.receipt(pending.uid)
            if receipt is not None and receipt.counted:
                return pending.c_i_next[:]
        return self.store.control(self._simulation.plan.n_train)
