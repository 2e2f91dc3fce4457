"""How a closed round moves the model: the server's optimisers, as values.

To the server the round's mean of delta_y is a gradient with its sign turned
round (Reddi et al., "Adaptive Federated Optimization", ICLR 2021, arXiv 2003.00295,
algorithm 2). An optimiser sees that mean alone: how devices train, how their
vectors travel and how they are weighted is none of its business, and it never sees a
control. ``server_lr`` is the optimiser's; the algorithm's own is that of the
plain mean, and stays 1 beside an optimiser.

Everything here is float64 and made of + - * / sqrt alone, so that a run has the
same bits everywhere. Hyperparameters are not rounded to float32: no device computes
with them.

>>> FedAdam(server_lr=0.01).wire()["name"]
'adam'
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.algorithms import FedAvg, make_one_of
from kellet.sdk.errors import UsageError, require

__all__ = [
    "OPTIMIZERS",
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedYogi",
    "Kept",
    "PlainMean",
    "ServerOptimizer",
    "check_beside",
    "from_wire",
    "make",
    "settings",
]

F64 = NDArray[np.float64]
Kept = tuple[str, bytes]
"""Moments at rest: whose they are, and their bytes."""


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(ABC):
    """What every server optimiser has.

    ``server_lr``: eta. Raises ``UsageError`` for a hyperparameter that is out of its range.
    """

    name: ClassVar[str]
    moments: ClassVar[int] = 0  # vectors that it keeps from round to round

    server_lr: float = 1.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            given = getattr(self, field.name)
            number = isinstance(given, (int, float, np.floating)) and not isinstance(given, bool)
            require(number and math.isfinite(given), field.name, given, "a finite number")
            object.__setattr__(self, field.name, float(given))
        require(self.server_lr > 0, "server_lr", self.server_lr, "above 0")

    @abstractmethod
    def step(self, mean: F64, moments: F64) -> F64:
        """What is added to the trained parameters, float64 [n]; ``moments`` move in place.

        ``mean``: the round's mean of delta_y, float64 [n]. ``moments``: float64
        [self.moments, n], as ``start`` made them or the last closed round left them.
        """

    def start(self, n: int) -> F64:
        """The moments before the first round."""
        return np.zeros((self.moments, n))

    def wire(self) -> dict[str, Any]:
        """Name and hyperparameters, as an announcement carries them."""
        return {"name": self.name, **dataclasses.asdict(self)}


@dataclass(frozen=True, kw_only=True)
class PlainMean(ServerOptimizer):
    """x + server_lr * mean: what a round does where no optimiser is chosen."""

    name: ClassVar[str] = "mean"

    def step(self, mean: F64, moments: F64) -> F64:
        return self.server_lr * mean


@dataclass(frozen=True, kw_only=True)
class FedAvgM(ServerOptimizer):
    """The server's SGD with momentum: m = beta m + mean; x += server_lr m.

    Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", 2019, arXiv 1909.06335, section 4.3.
    ``server_momentum``: beta; at 0 this is the plain mean, bit for bit. A mean that stays
    the same moves the model by 1/(1 - beta) of itself in the end: lower ``server_lr`` with it.
    """

    name: ClassVar[str] = "avgm"
    moments: ClassVar[int] = 1

    server_momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_share("server_momentum", self.server_momentum)

    def step(self, mean: F64, moments: F64) -> F64:
        m: F64 = moments[0]
        m *= self.server_momentum
        m += mean
        return self.server_lr * m


@dataclass(frozen=True, kw_only=True)
class _Adaptive(ServerOptimizer):
    """m = beta1 m + (1 - beta1) mean; v by ``_second``; x += server_lr m / (sqrt(v) + tau).

    m starts at zero and v at tau^2, and there is no correction for either: it is not
    the Adam of deep-learning frameworks.
    """

    moments: ClassVar[int] = 2

    server_lr: float = 0.1
    beta1: float = 0.9
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_share("beta1", self.beta1)
        # |m| is below 2^14, and v may vanish: so m / tau stays well within float32.
        require(self.tau >= 1e-12, "tau", self.tau, "at least 1e-12")

    def start(self, n: int) -> F64:
        moments = super().start(n)
        moments[1] = self.tau**2
        return moments

    def step(self, mean: F64, moments: F64) -> F64:
        m, v = moments
        m *= self.beta1
        m += (1 - self.beta1) * mean
        self._second(v, mean * mean)
        out: F64 = self.server_lr * m / (np.sqrt(v) + self.tau)
        return out

    def _second(self, v: F64, squared: F64) -> None:
        """Move v, in place, by the squares of the mean."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(_Adaptive):
    """Adagrad at the server: v = v + mean^2.

    Reddi et al. 2021, arXiv 2003.00295, algorithm 2. ``tau``: how adaptive it is; larger is
    less. ``beta1`` is 0 by default, as in the paper's experiments.
    """

    name: ClassVar[str] = "adagrad"

    beta1: float = 0.0

    def _second(self, v: F64, squared: F64) -> None:
        v += squared


@dataclass(frozen=True, kw_only=True)
class FedAdam(_Adaptive):
    """Adam at the server: v = beta2 v + (1 - beta2) mean^2.

    Reddi et al. 2021, arXiv 2003.00295, algorithm 2. ``beta1`` and ``beta2``: how long m and
    v remember. ``tau``: how adaptive it is; larger is less.
    """

    name: ClassVar[str] = "adam"

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_share("beta2", self.beta2)

    def _second(self, v: F64, squared: F64) -> None:
        v *= self.beta2
        v += (1 - self.beta2) * squared


@dataclass(frozen=True, kw_only=True)
class FedYogi(_Adaptive):
    """Yogi at the server: v = v - (1 - beta2) mean^2 sign(v - mean^2).

    Reddi et al. 2021, arXiv 2003.00295, algorithm 2. v falls by no more than a share of what
    it is compared with, so it never becomes negative, and it forgets a large mean more
    slowly than Adam's. ``beta1``, ``beta2``, ``tau``: as in ``FedAdam``.
    """

    name: ClassVar[str] = "yogi"

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_share("beta2", self.beta2)

    def _second(self, v: F64, squared: F64) -> None:
        v -= (1 - self.beta2) * squared * np.sign(v - squared)


OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    kind.name: kind for kind in (FedAvgM, FedAdagrad, FedAdam, FedYogi)
}
_NOUN = "server optimizer"


def make(name: str, **hyperparameters: Any) -> ServerOptimizer:
    """The optimiser ``name`` with these hyperparameters; ``UsageError`` where either is unknown."""
    return make_one_of(OPTIMIZERS, _NOUN, {**hyperparameters, "name": name})


def from_wire(fields: Mapping[str, Any] | None, server_lr: float) -> ServerOptimizer:
    """The optimiser of an announcement; where it has none, the plain mean at ``server_lr``."""
    if fields is None:
        return PlainMean(server_lr=server_lr)
    return make_one_of(OPTIMIZERS, _NOUN, fields)


def settings(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """An announced optimiser beside an algorithm's hyperparameters, whose server_lr it replaces."""
    if fields is None:
        return {"server_optimizer": "none"}
    return {"server_optimizer" if key == "name" else key: value for key, value in fields.items()}


def check_beside(algorithm: FedAvg, optimizer: ServerOptimizer | None) -> None:
    """``UsageError`` unless exactly one of the two says how far the model goes."""
    if optimizer is None:
        return
    if not isinstance(optimizer, ServerOptimizer):
        raise UsageError(
            f"server_optimizer = {optimizer!r}",
            why="it must be a value of kellet.server.algorithms",
            repair=f"for instance FedAdam(), or make() one of {', '.join(OPTIMIZERS)}",
        )
    if algorithm.server_lr != 1:
        kind = type(optimizer).__name__
        raise UsageError(
            f"server_lr = {algorithm.server_lr:g} of {algorithm.name} beside a server optimizer",
            why="the optimizer makes the step, with a server_lr of its own",
            repair=f"use {kind}(server_lr={algorithm.server_lr:g}), and leave the algorithm's at 1",
        )


def _require_share(name: str, value: float) -> None:
    require(0 <= value < 1, name, value, "at least 0 and below 1")
