"""The server half of each algorithm: how counted updates move the model and the control."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.heap import parts
from kellet.sdk.protocol.vectors import Codec
from kellet.server.halves import Counted, ServerHalf, number_of, register, vector_of
from kellet.server.optimizers import (
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    Kept,
    ServerOptimizer,
)
from kellet.server.sums import ExactSum

__all__ = [
    "FRESH",
    "Counted",
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedYogi",
    "Fleet",
    "Moved",
    "ServerHalf",
    "announced_control",
    "apply_mean",
    "explicit_agrees",
    "moments_of",
    "register",
    "staleness_weight",
]

FRESH = 1 << 10  # the weight of an update that is not late, where late ones are counted

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_PLAIN = ServerHalf(FedAvg())


def staleness_weight(stale: int) -> int:
    """The integer weight of delta_y ``stale`` rounds late: rint(2^10 / sqrt(1 + stale)).

    That is FedBuff's s(tau) = (1 + tau)^(-1/2) (Nguyen et al. 2022, arXiv 2106.06639; the
    polynomial of Xie, Koyejo and Gupta 2019, arXiv 1903.03934, with a = 1/2), in steps of
    2^-10. As there, a buffer is divided by what it would weigh if nothing in it were late:
    late updates move the model less, and do not make the others weigh more. Controls have
    no such weight: C is the sum of the c_i, and a device's c_i moves by all of delta_c.
    """
    return round(FRESH / math.sqrt(1 + stale))


@dataclass(frozen=True, slots=True)
class Moved:
    """What a round that closes leaves behind.

    ``model``: float32 [n_params]. ``kept``: the moments that the next round goes on from, or
    None. ``step_norm``: the norm of what was added to the trained parameters.
    """

    model: F32
    kept: Kept | None
    step_norm: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """C, the exact sum of the controls after the round, and what c is its mean over: N."""

    control: ExactSum
    weight: int

    def c(self, part: slice) -> F64:
        """C/N of some elements."""
        return self.control.mean(self.weight, part)


def apply_mean(  # noqa: PLR0917
    x: F32,
    total: ExactSum,
    weight: int,
    optimizer: ServerOptimizer,
    n_train: int,
    kept: Kept | None = None,
    *,
    half: ServerHalf = _PLAIN,
    updates: Sequence[Counted] = (),
    fleet: Fleet | None = None,
) -> Moved:
    """Move ``x`` by the mean of delta_y, as optimizer and half say: in float64, rounded once.

    ``x``: float32 [n_params], exact, however it was announced; it stays as it is. ``total``:
    the weighted sum of what the half sums, over n_update entries, ``weight`` the sum of the
    weights. ``kept``: the moments after the round that closed before. ``updates``: those that
    were counted; ``fleet``: for a half that uses the control. Buffers (behind n_train) are
    averaged plainly, at the rate 1; frozen tensors (behind n_update) stay.
    """
    moments = _resume(optimizer, half, kept, n_train)
    scale = number_of(half, "scale", updates)
    step = np.empty(n_train)
    out: F32 = kernels.aligned(len(x), np.float32)
    out[len(total) :] = x[len(total) :]
    for part in parts(len(total)):
        moved = total.mean(weight, part)
        trained = slice(part.start, min(part.stop, n_train))
        count = trained.stop - trained.start
        if count > 0:
            mean = moved[:count] * scale
            some = moments[:, trained]
            moved[:count] = vector_of(
                half,
                "step",
                count,
                optimizer.step(mean, some[: optimizer.moments]),
                mean,
                c=fleet.c(trained) if fleet and half.uses_control else None,
                moments=some[optimizer.moments :],
                updates=updates,
            )
            step[trained] = moved[:count]
        moved += x[part]
        out[part] = moved
    return Moved(out, _keep(optimizer, half, moments), kernels.norm(step))


def announced_control(
    control: ExactSum, weight: int, half: ServerHalf = _PLAIN, moments: F64 | None = None
) -> F32:
    """The control to announce: what ``half`` makes of c = C / (N 2^48), rounded once to float32.

    N, the ``weight``, is of the enrolled fleet, never of the cohort. ``moments``: the half's own.
    """
    c = np.empty(len(control), np.float32)
    for part in parts(len(control)):
        some = np.empty((0, part.stop - part.start)) if moments is None else moments[:, part]
        mean = control.mean(weight, part)
        c[part] = vector_of(half, "announced", len(mean), mean, some)
    return c


def moments_of(
    half: ServerHalf, optimizer: ServerOptimizer, kept: Kept | None, n_train: int
) -> F64 | None:
    """The half's own moments after the round that closed last; None where it has none."""
    if not half.moments:
        return None
    return _resume(optimizer, half, kept, n_train)[optimizer.moments :]


def _names(optimizer: ServerOptimizer, half: ServerHalf) -> str:
    return f"{optimizer.name}+{half.algorithm.name}" if half.moments else optimizer.name


def _resume(optimizer: ServerOptimizer, half: ServerHalf, kept: Kept | None, n: int) -> F64:
    """The moments to go on from, the optimiser's first; a start where those kept are others'.

    Other hyperparameters of the same kind go on from the same moments: these are averages of
    what devices sent, whatever was made of them.
    """
    if kept is None or kept[0] != _names(optimizer, half):
        return np.concatenate([optimizer.start(n), np.zeros((half.moments, n))])
    rows = optimizer.moments + half.moments
    return np.frombuffer(kept[1], "<f8").reshape(rows, n).astype(np.float64)


def _keep(optimizer: ServerOptimizer, half: ServerHalf, moments: F64) -> Kept | None:
    if not len(moments):
        return None
    return _names(optimizer, half), moments.astype("<f8", copy=False).tobytes()


def explicit_agrees(implied: I64, delta_c: F32, codec: Codec, layout: I64) -> bool:
    """Whether a derivable delta_c that travelled is the one ``implied`` by delta_y.

    Within its codec's rounding and one step of the grid: float32's, one unit of an int8 row,
    or, of the largest, those that were sent.
    """
    exact = kernels.from_grid(implied)
    allowed = np.abs(exact) * 2.0**-23 + 2.0**-47
    if codec == "q8":
        ends = np.repeat(layout[1::2], layout[::2]).cumsum()
        starts = np.concatenate([[0], ends[:-1]])
        unit = np.maximum.reduceat(np.abs(exact), starts) / 127 + 2.0**-40
        allowed += np.repeat(unit * (1 + 2.0**-20), np.diff(starts, append=ends[-1]))
    error = np.abs(exact - delta_c.astype(np.float64))
    return bool(np.all((error <= allowed) | ((codec == "topk") & (delta_c == 0))))
