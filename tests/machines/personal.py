"""A fleet whose devices make models of their own beside the fleet's, as drivers do."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from machines.network import Fleet
from machines.nodes import DeviceNode
from numpy.typing import NDArray

from kellet.sdk.device import StartTraining, Trained, TrainingStopped
from kellet.sdk.holdout import Judge
from kellet.sdk.personal.turn import take_turn
from kellet.sdk.protocol.vectors import Shapes, decode_vector

__all__ = ["PersonalFleet", "PersonalNode"]


class PersonalNode(DeviceNode):
    """It judges by the samples that it trains on: these toy fleets hold nothing out."""

    def durable(self) -> list[tuple[Any, tuple[str, ...]]]:
        return [*super().durable(), (self.store.personal, ("save",))]

    def personal(self) -> NDArray[np.float32] | None:
        """Its own model as it is stored."""
        stored = self.store.personal.find(self.fleet.plan.id)
        if stored is None:
            return None
        v = np.zeros(stored.n, np.float32)
        stored.read_into(v)
        return v

    def _train(self, effect: StartTraining) -> Trained | TrainingStopped:
        answer = super()._train(effect)
        if not isinstance(answer, Trained):
            return answer
        plan, announced = self.fleet.plan, effect.announced
        shapes, model = Shapes.of(plan.manifest.tensors), announced.round.model
        turn = take_turn(
            announced,
            self.fleet.sessions["f32/1"],
            decode_vector(model.codec, self.cache[model.sha256], shapes.update, shapes.n_update),
            self.data,
            plan=plan,
            shelf=self.store.personal,
            judge=Judge(plan, self.data),
            kept=None,
            device=self.name,
        )
        return dataclasses.replace(answer, turn=turn)


class PersonalFleet(Fleet):
    """``Fleet`` of such devices; ``personal`` among its options says how."""

    device_kind = PersonalNode
