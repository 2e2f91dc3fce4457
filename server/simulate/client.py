"""One simulated device: its machine, its store, and the training that it asks for."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import (
    Describe,
    Described,
    DeviceEvent,
    DeviceMachine,
    StartTraining,
    Trained,
    TrainingStopped,
)
from kellet.sdk.errors import FleetError
from kellet.sdk.given import Given
from kellet.sdk.holdout import Judge
from kellet.sdk.personal.turn import take_turn
from kellet.sdk.protocol.effects import Publish, Report, Subscribe, Unsubscribe
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.store import Store
from kellet.sdk.telling import describe
from kellet.sdk.trainer import Data, TrainingFailed, begin, train_from
from kellet.sdk.uplink import Uplink
from kellet.server.history import ClientMetrics
from kellet.server.simulate.kinds import Kind

if TYPE_CHECKING:
    from kellet.server.simulate.crew import Place

__all__ = ["EPOCH", "Client", "LinkAction", "Reply"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
EPOCH = 1

LinkAction = Publish | Subscribe | Unsubscribe


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client has to say about an event, and how it is left.

    ``actions``: for its link, in order. ``wake``: when its machine wants a ``Tick``. ``idle``:
    whether it is doing nothing. ``pending``: the name of its update that is not settled.
    """

    actions: list[LinkAction]
    wake: float | None
    idle: bool
    pending: bytes | None


def _after(steps: int) -> Callable[[], str]:
    """What a training asks after each step: whether these many are run."""
    run = itertools.count(1)
    return lambda: "out of time" if next(run) >= steps else ""


class Client:
    """Drives one device's machine, in the place that it shares with others."""

    def __init__(
        self,
        place: Place,
        topics: Topics,
        device: str,
        *,
        kind: Kind,
        data: Data,
        held: Data | None,
        nonce: bytes,
        control: I64 | None,
    ) -> None:
        self._place = place
        self._device = device
        self._kind = kind
        self._data = data
        self._held = held
        self._judge = Judge(place.plan, held, place.evaluator)
        self.store = Store(device, nonce=nonce)
        if control is not None:
            self.store.adopt(EPOCH, control)
        self._cache = BlobCache()
        self._cache.put(place.raw)
        boot = hashlib.sha256(nonce + b"boot").digest()[:8]
        self.machine = DeviceMachine(
            topics,
            self.store,
            self._cache,
            boot=boot,
            schemes=(kind.scheme,),
            sharing=kind.sharing,
            below=random.Random(nonce).randrange,  # the same in each run of the seed
        )

    def take(self, event: DeviceEvent, now: float) -> Reply:
        """Step the machine, and train where it asks for it."""
        actions: list[LinkAction] = []
        self._step(event, now, actions)
        machine = self.machine
        return Reply(actions, machine.wake, machine.doing == "nothing", self.store.pending_uid())

    def _step(self, event: DeviceEvent, now: float, actions: list[LinkAction]) -> None:
        for effect in self.machine.step(event, now):
            match effect:
                case Publish() | Subscribe() | Unsubscribe():
                    actions.append(effect)
                case StartTraining():
                    self._step(self._train(effect), now, actions)
                case Describe():
                    self._step(self._describe(effect), now, actions)
                case Report(kind="fatal"):
                    raise FleetError(f"client {self._device}: {effect.data['error']}")

    def _describe(self, effect: Describe) -> Described:
        """As a device does it, of all its samples."""
        x, y = self._data.x, self._data.y
        if self._held is not None:
            x, y = np.concatenate([x, self._held.x]), np.concatenate([y, self._held.y])
        return describe(effect, x, y)

    def _train(self, effect: StartTraining) -> Trained | TrainingStopped:
        place, announced = self._place, effect.announced
        plan, shapes, round_ = place.plan, place.shapes, announced.round
        steps = announced.algorithm.planned_steps(len(self._data))
        if self._kind.manages is not None:
            steps = self._kind.manages(round_.round, self._device, steps)
            if steps < 1:
                return TrainingStopped(announced.base, "it has time for no step")
        given = Given.take(round_, self._cache, self.store)
        x, controls = given.decode(announced.algorithm, shapes, self.store.control)
        judged = self._judge.received(x)
        session = place.session(self._kind.scheme)
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
                stepping=place.stepping,
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

    def personal(self) -> F32 | None:
        """Its own model, float32 [n_update]; None where it has made none."""
        stored = self.store.personal.find(self._place.plan.id)
        if stored is None:
            return None
        v: F32 = np.empty(stored.n, np.float32)
        stored.read_into(v)
        return v

    def metrics(self, model: F32) -> ClientMetrics | None:
        """How the fleet's model, float32 [n_params], and its own do on what it holds out."""
        judged = self._judge.whole(model)
        if judged is None:
            return None
        v = self.personal()
        own = None if v is None else self._judge.received(v)
        return ClientMetrics(
            samples=judged.samples,
            global_loss=judged.loss,
            global_accuracy=judged.accuracy,
            personal_loss=own.loss if own else None,
            personal_accuracy=own.accuracy if own else None,
        )

    def committed(self, counted: Collection[bytes]) -> I64 | None:
        """c_i as counted: the stored one, or the pending one if that update is among ``counted``.

        None stands for zeros.
        """
        uid = self.store.pending_uid()
        if uid is not None and uid in counted:
            pending = self.store.pending()
            assert pending is not None
            if pending.c_i_next is not None:
                return pending.c_i_next[:]
        packed = self.store.packed_control()
        return None if packed is None else np.frombuffer(packed, "<i8")

    def control(self) -> I64:
        """c_i as it is stored, int64 [n_train] on the grid."""
        return self.store.control(self._place.plan.n_train)
