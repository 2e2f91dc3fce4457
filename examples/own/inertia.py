"""A local step of one's own, with a state that each device keeps: momentum over rounds.

FedAvg's ``momentum`` begins at zero in every round. Here a device goes on with what it had
when its last update was counted.

    kellet simulate --task wisdm --algorithm inertia:inertia --set beta=0.8
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, Step, Work, register
from kellet.sdk.errors import require

__all__ = ["Inertia"]


@register
@dataclass(frozen=True, kw_only=True)
class Inertia(FedAvg):
    """m = beta m + g; y -= lr m, with m kept from round to round."""

    name: ClassVar[str] = "inertia"
    memory: ClassVar[Literal["", "receipt", "training"]] = "receipt"

    beta: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta < 1, "beta", self.beta, "at least 0 and below 1")

    def stepper(self, work: Work) -> Step:
        assert work.memory is not None
        return kernels.bind("sgd_momentum_step", work.y, work.memory, work.g, beta=self.beta)
