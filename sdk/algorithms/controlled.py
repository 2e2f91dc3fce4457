"""SCAFFOLD: control variates that take out the drift of each device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.kernels import Int8Rows
from kellet.sdk.algorithms.averaging import FedAvg, Int8Step, Int8Work, Step, Work
from kellet.sdk.errors import UsageError, require
from kellet.sdk.protocol.messages import DeltaC

__all__ = ["Scaffold", "ScaffoldM"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    """Stochastic controlled averaging: local steps along g - c_i + c.

    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning", ICML 2020, arXiv 1910.06378, algorithm 1 and equation 4. ``option``
    chooses c_i_new: ``I`` the full local gradient at x, ``II`` c_i - c + (x - y)/A with
    A the sum of the rates of the steps actually run. ``delta_c``: how the change of
    c_i travels: ``derived`` (no bytes; option II alone), ``f32``, ``q8`` or ``topk``.
    ``control_damping``: alpha; c_i goes that share of the way to option II's, which
    keeps the rounding of int8 weights and updates out of it. ``warm_start``: a device that has
    no control yet runs its first round as FedAvg does, and its c_i becomes the mean gradient of
    that (option II with c = c_i = 0). In the paper it would walk along g + c, about
    twice as far, and where few devices take part in a round most are newcomers for long.
    ``weighting``: ``samples`` weighs controls, too: C = sum w_i c_i and c = C / sum w_i, where
    w_i is the n_i of a device's first update in the control epoch. (To weigh delta_y alone would
    not move the optimum; c does.)
    """

    name: ClassVar[str] = "scaffold"
    controls: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = "uniform"
    option: Literal["I", "II"] = "II"
    delta_c: Literal["", "derived", "f32", "q8", "topk"] = ""
    control_damping: float = 1.0
    warm_start: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.option in ("I", "II"), "option", self.option, "I or II")
        if not self.delta_c:
            object.__setattr__(self, "delta_c", "derived" if self.option == "II" else "f32")
        require(
            self.delta_c in ("derived", "f32", "q8", "topk"),
            "delta_c",
            self.delta_c,
            "derived, f32, q8 or topk",
        )
        if self.option == "I" and self.delta_c == "derived":
            raise UsageError(
                "a derived delta_c under option I",
                why="the server cannot compute a full local gradient",
                repair='use delta_c="f32" or option="II"',
            )
        damping = self.control_damping
        require(0 < damping <= 1, "control_damping", damping, "above 0 and at most 1")
        if self.option == "I" and damping != 1:
            raise UsageError(
                f"control_damping = {damping:g} under option I",
                why="it damps what the rounding of delta_y leaves in c_i; option I's c_i is a "
                "gradient",
                repair='use option="II", or leave it out',
            )

    @property
    def control_codec(self) -> DeltaC:
        assert self.delta_c  # __post_init__ has chosen
        return self.delta_c

    @property
    def derivable(self) -> bool:
        return self.option == "II"

    @property
    def spares_newcomers(self) -> bool:
        return self.warm_start

    @property
    def begins_with_gradient(self) -> bool:
        return self.option == "I"

    def control_change(self, c_a: F32 | None, delta_y: F32, rate_sum: float) -> I64:
        """Option II: ``-control_damping * (c_a + delta_y/rate_sum)``."""
        c_a = np.zeros_like(delta_y) if c_a is None else c_a
        return kernels.derived_delta_c(c_a, delta_y, rate_sum, self.control_damping)

    def stepper(self, work: Work) -> Step:
        assert work.d is not None
        if isinstance(work.d, Int8Rows):
            self._refuse_int8("a shift held as int8 rows")
            return self._bind("scaffold_step_shift_rows", "scaffold_momentum_step", work, work.d)
        return self._bind("scaffold_step_shift", "scaffold_momentum_step", work, work.d)

    def int8_stepper(self, work: Int8Work) -> Int8Step:
        assert work.d is not None
        return self._bind_int8("scaffold_step_int8", work, work.d)


@dataclass(frozen=True, kw_only=True)
class ScaffoldM(Scaffold):
    """SCAFFOLD with the server's momentum in every local step.

    Cheng et al., "Momentum Benefits Non-IID Federated Learning Simply and Provably", ICLR
    2024, arXiv 2306.16504, algorithm 2 (SCAFFOLD-M). There a local step goes along
    ``beta (g - c_i + c) + (1 - beta) m``, where m is the mean direction of the last rounds. Taken
    apart, that is SCAFFOLD's step at ``beta`` times the rate with the control
    ``c + (1 - beta)/beta m``. The server announces this as its control: devices train, and
    their c_i change, as in SCAFFOLD. Unlike local momentum it adds nothing
    to what a device makes of a control that is old.

    ``beta``: the share of what is new; 1 is SCAFFOLD. ``local_lr`` is the rate of the steps
    as they are run, the paper's times beta: in the long run the model goes 1/beta times as far
    as SCAFFOLD's at the same ``local_lr``.
    """

    name: ClassVar[str] = "scaffold_m"

    beta: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.beta <= 1, "beta", self.beta, "above 0 and at most 1")
