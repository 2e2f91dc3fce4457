"""The device half of each algorithm, as values.

An algorithm is a frozen dataclass: its hyperparameters, and how a local step is
made, on float32 weights and on int8 ones. Floats are rounded to float32 when
the value is made, so that both sides of the link hold the same numbers.

>>> Scaffold(local_lr=0.1, local_steps=2).wire()["name"]
'scaffold'
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.kernels import Int8Rows, StepName
from kellet.sdk.errors import UsageError, require

__all__ = [
    "ALGORITHMS",
    "FedAvg",
    "FedProx",
    "Int8Work",
    "Scaffold",
    "Work",
    "from_wire",
    "make",
    "make_one_of",
]

F32 = NDArray[np.float32]
Step = Callable[[float], None]
Int8Step = Callable[[float, int], int]
_Kind = TypeVar("_Kind")
_MOST = 2**31 - 1  # of a count: what a message and the step's arithmetic hold
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Work:
    """The arrays of one device's round, over trained parameters held in float32.

    ``y``, ``g``, ``x``: float32 [n]. ``x`` is a snapshot taken before the first step;
    ``d`` the round's shift c - c_i, float32 [n] or int8 rows, None without controls.
    """

    y: F32
    g: F32
    x: F32
    d: F32 | Int8Rows | None = None


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
        for field in dataclasses.fields(self):
            if field.type == "float":
                value = _float32(field.name, getattr(self, field.name))
                object.__setattr__(self, field.name, value)
        require(self.local_lr > 0, "local_lr", self.local_lr, "above 0")
        require(0 < self.lr_decay <= 1, "lr_decay", self.lr_decay, "above 0 and at most 1")
        require(self.server_lr > 0, "server_lr", self.server_lr, "above 0")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "at least 0")
        require(self.clip >= 0, "clip", self.clip, "at least 0 (0: no limit)")
        for name, least in (("batch_size", 0), ("local_epochs", 1), ("local_steps", 0)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            wanted = f"a whole number, at least {least} and at most {_MOST}"
            require(whole and least <= value <= _MOST, name, value, wanted)
        require(
            self.weighting in ("samples", "uniform"),
            "weighting",
            self.weighting,
            "samples or uniform",
        )

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
        if self.momentum:
            return f"momentum = {self.momentum:g} wants a float32 buffer, and no int8 step has one"
        return ""

    def unclipped(self) -> Self:
        """This without ``clip``, for a caller who clips the gradient himself."""
        return dataclasses.replace(self, clip=0.0)

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


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    """Stochastic controlled averaging: local steps along g - c_i + c.

    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning", ICML 2020, arXiv 1910.06378, algorithm 1 and equation 4. ``option``
    chooses c_i_new: ``I`` the full local gradient at x, ``II`` c_i - c + (x - y)/A with
    A the sum of the rates of the steps actually run. ``delta_c``: how the change of
    c_i travels: ``derived`` (no bytes; option II alone), ``f32``, ``q8`` or ``topk``.
    ``control_damping``: alpha; c_i goes that share of the way to option II's, which
    keeps the rounding of int8 weights and updates out of it.
    """

    name: ClassVar[str] = "scaffold"
    controls: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = "uniform"
    option: Literal["I", "II"] = "II"
    delta_c: Literal["", "derived", "f32", "q8", "topk"] = ""
    control_damping: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.option in ("I", "II"), "option", self.option, "I or II")
        if self.weighting != "uniform":
            raise UsageError(
                "SCAFFOLD weighted by samples",
                why="weighting delta_y alone does not move the optimum, c does",
                repair='use weighting="uniform"',
            )
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

    def stepper(self, work: Work) -> Step:
        assert work.d is not None
        if isinstance(work.d, Int8Rows):
            self._refuse_int8("a shift held as int8 rows")
            return self._bind("scaffold_step_shift_rows", "scaffold_momentum_step", work, work.d)
        return self._bind("scaffold_step_shift", "scaffold_momentum_step", work, work.d)

    def int8_stepper(self, work: Int8Work) -> Int8Step:
        assert work.d is not None
        return self._bind_int8("scaffold_step_int8", work, work.d)


ALGORITHMS: dict[str, type[FedAvg]] = {kind.name: kind for kind in (FedAvg, FedProx, Scaffold)}


def make(name: str, **hyperparameters: Any) -> FedAvg:
    """The algorithm ``name`` with these hyperparameters; ``UsageError`` where either is unknown."""
    return make_one_of(ALGORITHMS, "algorithm", {**hyperparameters, "name": name})


def from_wire(fields: Mapping[str, Any]) -> FedAvg:
    """The algorithm of an announcement; ``UsageError`` where this version does not know it."""
    return make_one_of(ALGORITHMS, "algorithm", fields)


def make_one_of(kinds: Mapping[str, type[_Kind]], noun: str, fields: Mapping[str, Any]) -> _Kind:
    """The dataclass that ``fields`` has the ``name`` of, of the others. Raises ``UsageError``."""
    hyperparameters = dict(fields)
    name = str(hyperparameters.pop("name", ""))
    kind = kinds.get(name)
    if kind is None:
        raise UsageError(f"no {noun} {name!r}", repair=f"choose one of {', '.join(kinds)}")
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in hyperparameters:
        if key not in known:
            raise UsageError(f"{name} has no {key!r}", repair=f"it has {', '.join(known)}")
    return kind(**hyperparameters)


def _float32(name: str, value: object) -> float:
    number = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    require(number and -_LARGEST <= value <= _LARGEST, name, value, "a finite float32")  # type: ignore[operator]
    return float(np.float32(value))  # type: ignore[arg-type]
