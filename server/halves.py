"""The server half of each algorithm: what is summed, how the model moves, what c is announced.

A half is made from the device half that was announced, and holds nothing: what has to last
are vectors (``moments``) that the ledger keeps, written in the transaction that closes the
round. A server optimiser (``kellet.server.optimizers``) stands between the mean and the
half's step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.algorithms import ALGORITHMS, FedAvg, FedDyn, FedNova, ScaffoldM
from kellet.sdk.errors import KelletError, UsageError
from kellet.server.optimizers import ServerOptimizer

__all__ = [
    "HALVES",
    "Counted",
    "DynamicMean",
    "MomentumControl",
    "NormalisedMean",
    "ServerHalf",
    "ask",
    "check_beside",
    "half_of",
    "number_of",
    "register",
    "vector_of",
    "weight_of",
]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a counted update says of itself: all that a half may look at beside the vector.

    ``samples``: n_i; ``steps``: K as run; ``rate_sum``: A; ``loss``: the mean over its steps,
    ``drift``: ||y - y_0||. ``weight``: its weight in the mean, before any for staleness.
    """

    samples: int
    steps: int
    rate_sum: float
    loss: float
    drift: float
    weight: int = 0

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Self:
        """Of an update's header, as the ledger keeps it."""
        return cls(*(header[n] for n in ("samples", "steps", "rate_sum", "loss", "drift")))


class ServerHalf:
    """The plain half, FedAvg's, FedProx's and SCAFFOLD's: the weighted mean moves the model.

    Extend it for an algorithm of your own. Every method works on float64 and with
    + - * / sqrt alone, so that a run has the same bits everywhere. ``algorithm``: the device
    half, with the hyperparameters of the round.
    """

    moments: ClassVar[int] = 0  # vectors [n_train] that are kept from round to round
    uses_control: ClassVar[bool] = False  # whether ``step`` is given c
    optimizable: ClassVar[bool] = True  # whether a server optimiser may make its step

    def __init__(self, algorithm: FedAvg) -> None:
        self.algorithm = algorithm

    def weight(self, update: Counted) -> int:
        """The integer weight of delta_y in the mean, from 0 and below 2^31."""
        return update.samples if self.algorithm.weighting == "samples" else 1

    def summed(self, delta_y: F32, update: Counted) -> F32 | F64:
        """What is summed, float [n_train], of the trained part of a decoded delta_y.

        An update of which a value is not inside (-2^14, 2^14) is refused.
        """
        return delta_y

    def scale(self, updates: Sequence[Counted]) -> float:
        """A factor of the mean. The order of ``updates`` must not matter: see ``math.fsum``."""
        return 1.0

    def step(
        self,
        move: F64,
        mean: F64,
        *,
        c: F64 | None,
        moments: F64,
        updates: Sequence[Counted],
    ) -> F64:
        """What is added to x, float64 [n] of some trained parameters.

        ``move``: what the optimiser makes of ``mean``, the round's scaled mean. ``c``:
        C/N after the round, where the half uses it. ``moments``: float64 [self.moments, n], to be
        moved in place; zeros before the first round.
        """
        return move

    def announced(self, c: F64, moments: F64) -> F64:
        """The control to announce, float64 [n], where c is C/N."""
        return c


class NormalisedMean(ServerHalf):
    """FedNova's: mean(A) * mean(delta_y/A)."""

    def summed(self, delta_y: F32, update: Counted) -> F64:
        out: F64 = delta_y.astype(np.float64) / update.rate_sum
        return out

    def scale(self, updates: Sequence[Counted]) -> float:
        return _mean_rate_sum(updates)


class DynamicMean(ServerHalf):
    """FedDyn's: mean(delta_y) - h/alpha, where h = C/N after the round."""

    uses_control = True
    optimizable = False

    def step(
        self,
        move: F64,
        mean: F64,
        *,
        c: F64 | None,
        moments: F64,
        updates: Sequence[Counted],
    ) -> F64:
        assert isinstance(self.algorithm, FedDyn)
        assert c is not None
        return move - c / self.algorithm.alpha


class MomentumControl(ServerHalf):
    """SCAFFOLD-M's: m = -beta * mean(delta_y)/mean(A); c + (1 - beta)/beta m is announced.

    With the control of the paper in it, -mean(delta_y)/A is the fresh direction plus
    (1 - beta)/beta m: so m is its moving average, (1 - beta) m + beta fresh.
    """

    moments = 1

    def step(
        self,
        move: F64,
        mean: F64,
        *,
        c: F64 | None,
        moments: F64,
        updates: Sequence[Counted],
    ) -> F64:
        moments[0] = mean * (-self._beta / _mean_rate_sum(updates))
        return move

    def announced(self, c: F64, moments: F64) -> F64:
        out: F64 = c + ((1 - self._beta) / self._beta) * moments[0]
        return out

    @property
    def _beta(self) -> float:
        assert isinstance(self.algorithm, ScaffoldM)
        return self.algorithm.beta


def ask(half: ServerHalf, method: str, *arguments: Any, **named: Any) -> Any:
    """Call a method of a half, which may be a user's: what it raises becomes an error in words."""
    try:
        return getattr(half, method)(*arguments, **named)
    except KelletError:
        raise
    except Exception as error:
        raise _wrong(half, method, f"it raised {type(error).__name__}: {error}") from error


def weight_of(half: ServerHalf, update: Counted) -> int:
    """The weight that the half gives. Raises ``UsageError`` where it is no whole number."""
    weight = ask(half, "weight", update)
    if not isinstance(weight, int) or isinstance(weight, bool):
        raise _wrong(half, "weight", f"it returned {weight!r}, and a weight is a whole number")
    return weight


def number_of(half: ServerHalf, method: str, *arguments: Any) -> float:
    """A number that the half gives. Raises ``UsageError`` where it is none, or not finite."""
    number = ask(half, method, *arguments)
    if not isinstance(number, (int, float, np.floating)) or not math.isfinite(number):
        raise _wrong(half, method, f"it returned {number!r}, and a finite number is due")
    return float(number)


def vector_of(half: ServerHalf, method: str, n: int, *arguments: Any, **named: Any) -> Any:
    """A vector that the half gives. Raises ``UsageError`` where it has not n entries."""
    vector = ask(half, method, *arguments, **named)
    if np.shape(vector) != (n,):
        raise _wrong(half, method, f"it returned the shape {np.shape(vector)}, and ({n},) is due")
    return vector


def _wrong(half: ServerHalf, method: str, why: str) -> UsageError:
    return UsageError(
        f"{type(half).__qualname__}.{method} of {half.algorithm.name} cannot be used",
        why=why,
        repair="repair the server half (docs/own-algorithm.md)",
    )


HALVES: dict[str, type[ServerHalf]] = {}
_Half = TypeVar("_Half", bound=ServerHalf)


def register(device_half: type[FedAvg], half: type[_Half]) -> type[_Half]:
    """Let ``half`` be the server's of an algorithm that ``sdk.algorithms.register`` knows.

    An algorithm without one has its parent's. Raises ``UsageError`` for an unknown algorithm.
    """
    if ALGORITHMS.get(device_half.name) is not device_half:
        raise UsageError(
            f"no algorithm {device_half.name!r} is registered",
            repair="register the device half first: @kellet.sdk.algorithms.register",
        )
    HALVES[device_half.name] = half
    return half


def half_of(algorithm: FedAvg) -> ServerHalf:
    """The server half of an algorithm: its own, or the nearest of those that it extends."""
    for kind in type(algorithm).__mro__:
        half = HALVES.get(kind.__dict__.get("name", ""))
        if half is not None:
            return half(algorithm)
    return ServerHalf(algorithm)


def check_beside(algorithm: FedAvg, optimizer: ServerOptimizer | None) -> None:
    """``UsageError`` where the half makes its step itself and an optimiser would, too."""
    if optimizer is not None and not half_of(algorithm).optimizable:
        raise UsageError(
            f"{algorithm.name} with a server optimizer ({optimizer.name})",
            why=f"{algorithm.name} fixes the step that the model takes",
            repair="leave the optimizer out, or take another algorithm",
        )


def _mean_rate_sum(updates: Sequence[Counted]) -> float:
    """mean(A) in the round's weights; exact until its last rounding, so in any order."""
    total = math.fsum(update.weight * update.rate_sum for update in updates)
    return total / sum(update.weight for update in updates)


register(FedNova, NormalisedMean)
register(FedDyn, DynamicMean)
register(ScaffoldM, MomentumControl)
