"""Federated averaging, and what every other algorithm's device half inherits from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.kernels import Int8Rows, StepName
from kellet.sdk.algorithms.fields import hold_fields
from kellet.sdk.errors import UsageError, require
from kellet.sdk.protocol.messages import DeltaC

__all__ = ["FedAvg", "Int8Step", "Int8Work", "Step", "Work"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Step = Callable[[float], None]
Int8Step = Callable[[float, int], int]
_COUNTS = {"batch_size": 0, "local_epochs": 1, "local_steps": 0}


@dataclass(frozen=True, slots=True)
class Work:
    """The arrays of one device's round, over trained parameters held in float32.

    ``y``, ``g``, ``x``: float32 [n]. ``x`` is a snapshot taken before the first step;
    ``d`` the round's shift c - c_i, float32 [n] or int8 rows, None without controls.
    ``memory``: what the device keeps for an algorithm that has one, float32 [n]; zeros before
    its first round.
    """

    y: F32
    g: F32
    x: F32
    d: F32 | Int8Rows | None = None
    memory: F32 | None = None


@dataclass(frozen=True, slots=True)
class Int8Work:
    """The same over trained parameters held as int8 rows, all of one layout.

    ``g`` is float32 [n]; ``seed`` that of the stochastic rounding.
    """

    y: Int8Rows
    g: F32
    x: Int8Rows
    d: Int8Rows | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Federated averaging.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017, arXiv 1602.05629, algorithm 1.

    ``local_lr``: eta_l; step k of a round uses ``local_lr * lr_decay**k``.
    ``batch_size``: samples in a mini-batch, 0 for all of them. A round runs
    ``local_steps`` steps, or ``local_epochs`` passes where that is 0.
    ``server_lr``: eta_g. ``weighting``: by ``samples`` (n_i/n) or ``uniform``.

    ``clip`` first scales a gradient down to that norm (0: never), then ``weight_decay``
    adds its multiple of y; corrections come after both. ``momentum``: beta of a buffer
    that is zero at each round's start; only where weights are float32.
    """

    name: ClassVar[str] = "fedavg"
    controls: ClassVar[bool] = False
    memory: ClassVar[Literal["", "receipt", "training"]] = ""
    """Whether a device keeps a vector from round to round, and when its new value is committed.

    ``receipt``: when the update that it belongs to was counted, and else never, as c_i is;
    ``training``: with the update, whatever the receipt will say. Both survive a power cut.
    """

    local_lr: float = 0.05
    lr_decay: float = 1.0
    batch_size: int = 32
    local_epochs: int = 1
    local_steps: int = 0
    server_lr: float = 1.0
    weighting: Literal["samples", "uniform"] = "samples"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        hold_fields(self, _COUNTS)
        require(self.local_lr > 0, "local_lr", self.local_lr, "above 0")
        require(0 < self.lr_decay <= 1, "lr_decay", self.lr_decay, "above 0 and at most 1")
        require(self.server_lr > 0, "server_lr", self.server_lr, "above 0")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "at least 0")
        require(self.clip >= 0, "clip", self.clip, "at least 0 (0: no limit)")
        require(
            self.weighting in ("samples", "uniform"),
            "weighting",
            self.weighting,
            "samples or uniform",
        )

    @property
    def announces_control(self) -> bool:
        """Whether the server control variate travels to the devices."""
        return self.controls

    @property
    def control_codec(self) -> DeltaC:
        """How the change of c_i travels; ``none`` without controls."""
        return "none"

    @property
    def derivable(self) -> bool:
        """Whether ``control_change`` gives the change of c_i."""
        return self.control_codec == "derived"

    @property
    def weighs_controls(self) -> bool:
        """Whether C is the sum of w_i c_i, w_i the samples of a device's first update."""
        return self.controls and self.weighting == "samples"

    @property
    def spares_newcomers(self) -> bool:
        """Whether a device with no control yet runs a round without the announced one."""
        return False

    @property
    def begins_with_gradient(self) -> bool:
        """Whether c_i becomes the full local gradient at x, which is taken before the steps."""
        return False

    @property
    def lookahead(self) -> float:
        """alpha: steps take the gradient at y - alpha g(y), on a batch of its own; 0: at y."""
        return 0.0

    def control_change(self, c_a: F32 | None, delta_y: F32, rate_sum: float) -> I64:
        """delta_c int64 [n] on the grid, of some elements: the line that both sides compute.

        ``c_a`` float32 [n]: the control decoded from the announcement that the update
        names, None for zeros. ``delta_y`` float32 [n]: the decoded update. ``rate_sum``: A. Raises
        ``ValueError`` where a result leaves the grid.
        """
        raise NotImplementedError(f"{self.name} has no controls")

    def rate(self, k: int) -> float:
        """The float32 learning rate of step k (from 0) of a round."""
        return float(np.float32(self.local_lr * self.lr_decay**k))

    def batch(self, samples: int) -> int:
        """Samples in a full mini-batch of a device that holds ``samples``."""
        return min(self.batch_size or samples, samples)

    def planned_steps(self, samples: int) -> int:
        """K for a device with ``samples`` samples; the short last batch counts as a step."""
        return self.local_steps or self.local_epochs * math.ceil(samples / self.batch(samples))

    def advance(self, rate_sum: float, weight: float, rate: float) -> tuple[float, float]:
        """A and the momentum's weight after one more step at ``rate``; both begin at 0."""
        return kernels.advance_rate_sum(rate_sum, weight, rate, self.momentum)

    def stepper(self, work: Work) -> Step:
        """The local step, bound to the arrays: called with the rate after each gradient."""
        return self._bind("sgd_step", "sgd_momentum_step", work)

    def int8_stepper(self, work: Int8Work) -> Int8Step:
        """The same on int8 rows: called with rate and index; how many rows could not take it.

        ``clip`` is left to the caller, who has the whole gradient. Raises ``UsageError`` where
        ``int8_refusal`` has a reason.
        """
        return self._bind_int8("sgd_step_int8", work)

    @property
    def int8_refusal(self) -> str:
        """Why this cannot train with weights or a shift held in int8; empty where it can."""
        if self.memory:
            return f"{self.name} keeps a float32 vector, and no int8 step has one"
        if self.momentum:
            return f"momentum = {self.momentum:g} wants a float32 buffer, and no int8 step has one"
        return ""

    def remember(self, work: Work, rate_sum: float) -> None:
        """Write the new memory to ``work.memory``, after the last step; ``rate_sum``: A.

        A step may have written to it as well. Only algorithms with a ``memory`` are asked.
        """

    def changed(self, **hyperparameters: Any) -> Self:
        """The same with other hyperparameters. Raises ``UsageError`` as making it does."""
        return dataclasses.replace(self, **hyperparameters)

    def unclipped(self) -> Self:
        """This without ``clip``, for a caller who clips the gradient himself."""
        return self.changed(clip=0.0)

    def penalty(self, distance: float) -> float:
        """What the objective adds to the data's loss at this distance of y from x."""
        return 0.0

    @property
    def penalised(self) -> bool:
        """Whether ``penalty`` is ever more than zero."""
        return False

    def _bind(
        self, plain: StepName, with_momentum: StepName, work: Work, *more: Any
    ) -> Callable[..., Any]:
        """Bind one of two kernels: to y, g and more, or to y, a new momentum buffer, g and more."""
        options: dict[str, Any] = {"weight_decay": self.weight_decay, "clip": self.clip or None}
        if not self.momentum:
            return kernels.bind(plain, work.y, work.g, *more, **options)
        buffer = kernels.aligned(len(work.y))
        options["beta"] = self.momentum
        return kernels.bind(with_momentum, work.y, buffer, work.g, *more, **options)

    def _refuse_int8(self, what: str) -> None:
        if self.int8_refusal:
            raise UsageError(
                f"{self.name} with {what}",
                why=self.int8_refusal,
                repair="leave that out, or train in float32",
            )

    def _bind_int8(self, name: StepName, work: Int8Work, *more: Int8Rows) -> Callable[..., Any]:
        self._refuse_int8("int8 weights")
        options = {"weight_decay": self.weight_decay, "seed": work.seed}
        return kernels.bind(name, work.y, work.g, *more, **options)  # type: ignore[arg-type]

    def wire(self) -> dict[str, Any]:
        """Name and hyperparameters, as an announcement carries them."""
        return {"name": self.name, **dataclasses.asdict(self)}
