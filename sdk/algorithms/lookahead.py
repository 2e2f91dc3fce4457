"""Per-FedAvg: a model that is good after a step on whoever's data it meets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from kellet.sdk.algorithms.averaging import FedAvg
from kellet.sdk.errors import require

__all__ = ["PerFedAvg"]


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(FedAvg):
    """Personalised federated averaging, first order: steps along the gradient of a point ahead.

    Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees:
    A Model-Agnostic Meta-Learning Approach", NeurIPS 2020, arXiv 2002.07948, algorithm 1 in its
    first-order form (FO), without the Hessian: ``y -= local_lr * g'(y - alpha * g(y))``, where g
    and g' are the gradients on two mini-batches, one after the other. The model it comes to is
    a start: a device's own model is what one step at ``alpha`` on its data makes of it
    (``kellet.sdk.personal.FineTune(steps=1)``).

    ``alpha``: the rate of the step ahead; ``local_lr`` is the paper's beta. A step takes two
    batches, so an epoch has half of the steps. ``clip`` and ``weight_decay`` are of g' alone.
    The loss that is reported is at y, the objective is the loss at the point ahead. A device
    holds one float32 vector [n_train] more than under FedAvg.
    """

    name: ClassVar[str] = "perfedavg"

    alpha: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha > 0, "alpha", self.alpha, "above 0")

    @property
    def lookahead(self) -> float:
        return self.alpha

    def planned_steps(self, samples: int) -> int:
        batches = self.local_epochs * math.ceil(samples / self.batch(samples))
        return self.local_steps or math.ceil(batches / 2)

    @property
    def int8_refusal(self) -> str:
        return "the point ahead takes float32: rounding to int8 rows would hide so short a step"
