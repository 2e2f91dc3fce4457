"""FedProx: a leash on each device's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kellet.kernels import StepName
from kellet.sdk.algorithms.averaging import FedAvg, Int8Step, Int8Work, Step, Work
from kellet.sdk.errors import UsageError, require

__all__ = ["FedProx"]


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose local objective adds (mu/2) ||y - x||^2.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
    arXiv 1812.06127, algorithm 2. ``mu = 0`` is FedAvg, bit for bit. ``implicit``
    takes the proximal term at the new point, stable for any ``local_lr * mu``;
    the explicit step is refused from 2 upwards, where it diverges.
    """

    name: ClassVar[str] = "fedprox"

    mu: float = 0.01
    implicit: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mu >= 0, "mu", self.mu, "at least 0")
        if self.local_lr * self.mu >= 2 and not self.implicit:
            raise UsageError(
                f"local_lr * mu = {self.local_lr * self.mu:g}",
                why="the explicit proximal step diverges from 2 upwards",
                repair="lower local_lr or mu, or set implicit=True",
            )
        if self.implicit and self.momentum:
            raise UsageError(
                "the implicit proximal step with momentum",
                why="it solves for the new point, which a buffer of old gradients moves away",
                repair="leave out momentum, or implicit",
            )

    def stepper(self, work: Work) -> Step:
        if not self.penalised:
            return super().stepper(work)
        plain: StepName = "prox_step_implicit" if self.implicit else "prox_step"
        step, mu = self._bind(plain, "prox_momentum_step", work, work.x), self.mu
        return lambda lr: step(lr, mu)

    def int8_stepper(self, work: Int8Work) -> Int8Step:
        if not self.penalised:
            return super().int8_stepper(work)
        step, mu = self._bind_int8("prox_step_int8", work, work.x), self.mu
        if self.implicit:
            # (y - lr*g + lr*mu*x)/(1 + lr*mu) is the explicit step at the rate lr/(1 + lr*mu).
            return lambda lr, k: int(step(lr / (1 + lr * mu), mu, k))
        return lambda lr, k: int(step(lr, mu, k))

    def penalty(self, distance: float) -> float:
        return 0.5 * self.mu * distance**2

    @property
    def penalised(self) -> bool:
        return self.mu != 0
