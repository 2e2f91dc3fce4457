"""FedDyn: a regulariser that each device moves, so that local optima agree with the global one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.algorithms.averaging import FedAvg, Step, Work
from kellet.sdk.errors import UsageError, require
from kellet.sdk.protocol.messages import DeltaC

__all__ = ["FedDyn"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class FedDyn(FedAvg):
    """Federated dynamic regularisation: local steps along g - lambda_i + alpha (y - x).

    Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021, arXiv
    2111.04263, algorithm 1. lambda_i is the paper's gradient of the device's loss at its last
    local optimum. It moves by ``-alpha * delta_y``, which both sides know: so it is this
    device's control, committed on the receipt like any other, and costs no byte in either
    direction. The server's h is their mean over the fleet, C/N, and the model
    becomes ``x + mean(delta_y) - h/alpha``.

    ``alpha``: strength of the regulariser. Small ones trust the local optimum, large ones
    keep devices near x; the paper's are 0.001 to 0.1, for many local steps.
    """

    name: ClassVar[str] = "feddyn"
    controls: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = "uniform"
    alpha: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha > 0, "alpha", self.alpha, "above 0")
        require(self.weighting == "uniform", "weighting", self.weighting, "uniform")
        require(self.server_lr == 1, "server_lr", self.server_lr, "1: h/alpha fixes the step")
        require(not self.momentum, "momentum", self.momentum, "0: no local step here has one")
        if self.local_lr * self.alpha >= 2:
            raise UsageError(
                f"local_lr * alpha = {self.local_lr * self.alpha:g}",
                why="the regularised local step diverges from 2 upwards",
                repair="lower local_lr or alpha",
            )

    @property
    def announces_control(self) -> bool:
        return False

    @property
    def control_codec(self) -> DeltaC:
        return "derived"

    def control_change(self, c_a: F32 | None, delta_y: F32, rate_sum: float) -> I64:
        return kernels.derived_delta_c(np.zeros_like(delta_y), delta_y, 1 / self.alpha)

    def stepper(self, work: Work) -> Step:
        assert isinstance(work.d, np.ndarray)
        leash = self._bind("prox_step", "prox_momentum_step", work, work.x)
        turn, alpha = kernels.bind("sgd_step", work.y, work.d), self.alpha

        def step(lr: float) -> None:
            leash(lr, alpha)
            turn(lr)

        return step

    @property
    def int8_refusal(self) -> str:
        return "no int8 step has both lambda_i and the pull to x"

    def penalty(self, distance: float) -> float:
        """Without the linear term of lambda_i."""
        return 0.5 * self.alpha * distance**2

    @property
    def penalised(self) -> bool:
        return True
