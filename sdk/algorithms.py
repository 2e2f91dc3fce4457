"""The device half of each algorithm, as values.

An algorithm is a frozen dataclass: its hyperparameters, how a local step is
made, and what becomes of the device's control variate. Floats are rounded to
float32 when the value is made, so that both sides of the link hold the same
numbers.

>>> Scaffold(local_lr=0.1, local_steps=2).wire()["name"]
'scaffold'
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.errors import UsageError

__all__ = ["ALGORITHMS", "FedAvg", "FedProx", "Scaffold", "Work", "from_wire", "make"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Step = Callable[[float], None]
_MOST = 2**31 - 1  # of a count: what a message and the step's arithmetic hold
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Work:
    """The arrays of one device's round, over the trained parameters.

    ``y``, ``g``, ``x``, ``c``: float32 [n_train]; ``c_i``: int64 [n_train] on the grid
    2^-48. ``x`` is a snapshot taken before the first step; ``c`` and ``c_i`` are None
    where the algorithm has no controls.
    """

    y: F32
    g: F32
    x: F32
    c: F32 | None = None
    c_i: I64 | None = None


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Federated averaging.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from
    Decentralized Data", AISTATS 2017, arXiv 1602.05629, algorithm 1.

    ``local_lr``: eta_l; step k of a round uses ``local_lr * lr_decay**k``.
    ``batch_size``: samples in a mini-batch, 0 for all of them. A round runs
    ``local_steps`` steps, or ``local_epochs`` passes where that is 0.
    ``server_lr``: eta_g. ``weighting``: by ``samples`` (n_i/n) or ``uniform``.
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

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.type == "float":
                value = _float32(field.name, getattr(self, field.name))
                object.__setattr__(self, field.name, value)
        _require(self.local_lr > 0, "local_lr", self.local_lr, "above 0")
        _require(0 < self.lr_decay <= 1, "lr_decay", self.lr_decay, "above 0 and at most 1")
        _require(self.server_lr > 0, "server_lr", self.server_lr, "above 0")
        for name, least in (("batch_size", 0), ("local_epochs", 1), ("local_steps", 0)):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            wanted = f"a whole number, at least {least} and at most {_MOST}"
            _require(whole and least <= value <= _MOST, name, value, wanted)
        _require(
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

    def stepper(self, work: Work) -> Step:
        """The local step, bound to the arrays: called with the rate after each gradient."""
        return kernels.bind("sgd_step", work.y, work.g)

    def penalty(self, work: Work) -> float:
        """What the objective adds to the data's loss at ``work.y``."""
        return 0.0

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
        _require(self.mu >= 0, "mu", self.mu, "at least 0")
        if self.local_lr * self.mu >= 2 and not self.implicit:
            raise UsageError(
                f"local_lr * mu = {self.local_lr * self.mu:g}",
                why="the explicit proximal step diverges from 2 upwards",
                repair="lower local_lr or mu, or set implicit=True",
            )

    def stepper(self, work: Work) -> Step:
        if self.mu == 0:
            return super().stepper(work)
        step = kernels.bind(
            "prox_step_implicit" if self.implicit else "prox_step", work.y, work.g, work.x
        )
        mu = self.mu
        return lambda lr: step(lr, mu)

    def penalty(self, work: Work) -> float:
        return 0.5 * self.mu * kernels.distance(work.y, work.x) ** 2 if self.mu else 0.0


@dataclass(frozen=True, kw_only=True)
class Scaffold(FedAvg):
    """Stochastic controlled averaging: local steps along g - c_i + c.

    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning", ICML 2020, arXiv 1910.06378, algorithm 1 and equation 4. ``option``
    chooses c_i_new: ``I`` the full local gradient at x, ``II`` c_i - c + (x - y)/A with
    A the sum of the rates of the steps actually run. ``delta_c``: how the change of
    c_i travels: ``derived`` (no bytes; option II alone) or ``f32``.
    """

    name: ClassVar[str] = "scaffold"
    controls: ClassVar[bool] = True

    weighting: Literal["samples", "uniform"] = "uniform"
    option: Literal["I", "II"] = "II"
    delta_c: Literal["", "derived", "f32"] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(self.option in ("I", "II"), "option", self.option, "I or II")
        if self.weighting != "uniform":
            raise UsageError(
                "SCAFFOLD weighted by samples",
                why="weighting delta_y alone does not move the optimum, c does",
                repair='use weighting="uniform"',
            )
        if not self.delta_c:
            object.__setattr__(self, "delta_c", "derived" if self.option == "II" else "f32")
        _require(self.delta_c in ("derived", "f32"), "delta_c", self.delta_c, "derived or f32")
        if self.option == "I" and self.delta_c == "derived":
            raise UsageError(
                "a derived delta_c under option I",
                why="the server cannot compute a full local gradient",
                repair='use delta_c="f32" or option="II"',
            )

    def stepper(self, work: Work) -> Step:
        assert work.c is not None
        assert work.c_i is not None
        return kernels.bind(
            "scaffold_step_shift", work.y, work.g, kernels.control_shift(work.c, work.c_i)
        )

    def control_change(
        self, work: Work, delta_y: F32, rate_sum: float, full_gradient: NDArray[np.float64] | None
    ) -> tuple[I64, F32 | None]:
        """delta_c as it will be counted, int64 [n_train], and as it travels (None: derived).

        ``delta_y``: the decoded uplink over the trained parameters. ``full_gradient``:
        float64 [n_train], the mean local gradient at x, for option I.
        """
        assert work.c is not None
        assert work.c_i is not None
        if self.option == "II":
            exact = kernels.derived_delta_c(work.c, delta_y, rate_sum)
            if self.delta_c == "derived":
                return exact, None
            sent = kernels.from_grid(exact).astype(np.float32)
        else:
            assert full_gradient is not None
            sent = (full_gradient - kernels.from_grid(work.c_i)).astype(np.float32)
        # c_i follows what the server will decode, not what was computed: both sums stay equal.
        return kernels.to_grid(sent), sent


ALGORITHMS: dict[str, type[FedAvg]] = {kind.name: kind for kind in (FedAvg, FedProx, Scaffold)}


def make(name: str, **hyperparameters: Any) -> FedAvg:
    """The algorithm ``name`` with these hyperparameters; ``UsageError`` where either is unknown."""
    kind = ALGORITHMS.get(name)
    if kind is None:
        raise UsageError(f"no algorithm {name!r}", repair=f"choose one of {', '.join(ALGORITHMS)}")
    known = [field.name for field in dataclasses.fields(kind)]
    for key in hyperparameters:
        if key not in known:
            raise UsageError(f"{name} has no {key!r}", repair=f"it has {', '.join(known)}")
    return kind(**hyperparameters)


def from_wire(fields: Mapping[str, Any]) -> FedAvg:
    """The algorithm of an announcement; ``UsageError`` where this version does not know it."""
    hyperparameters = dict(fields)
    return make(str(hyperparameters.pop("name", "")), **hyperparameters)


def _float32(name: str, value: object) -> float:
    number = isinstance(value, (int, float, np.floating)) and not isinstance(value, bool)
    _require(number and -_LARGEST <= value <= _LARGEST, name, value, "a finite float32")  # type: ignore[operator]
    return float(np.float32(value))  # type: ignore[arg-type]


def _require(good: bool, name: str, value: object, wanted: str) -> None:
    if not good:
        raise UsageError(f"{name} = {value!r}", why=f"it must be {wanted}", repair=f"change {name}")
