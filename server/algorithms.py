"""The server half of each algorithm: how counted updates move the model and the control."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.heap import parts
from kellet.sdk.protocol.vectors import Codec
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
    "FedAdagrad",
    "FedAdam",
    "FedAvgM",
    "FedYogi",
    "Moved",
    "announced_control",
    "apply_mean",
    "explicit_agrees",
    "implied_delta_c",
    "staleness_weight",
    "weight_of",
]

FRESH = 1 << 10  # the weight of an update that is not late, where late ones are counted

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


def weight_of(algorithm: FedAvg, samples: int) -> int:
    """The integer weight of an update: n_i, or 1 where the mean is uniform."""
    return samples if algorithm.weighting == "samples" else 1


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


def apply_mean(  # noqa: PLR0917
    x: F32,
    total: ExactSum,
    weight: int,
    optimizer: ServerOptimizer,
    n_train: int,
    kept: Kept | None = None,
) -> Moved:
    """Move ``x`` by the mean of delta_y, as ``optimizer`` says: in float64, rounded once.

    ``x``: float32 [n_params], exact, however it was announced; it stays as it is. ``total``:
    the weighted sum of delta_y over n_update entries, ``weight`` the sum of the weights.
    ``kept``: the moments after the round that closed before. Buffers (behind n_train) are
    averaged plainly, at the rate 1; frozen tensors (behind n_update) stay.
    """
    moments = optimizer.resume(kept, n_train)
    step = np.empty(n_train)
    out: F32 = kernels.aligned(len(x), np.float32)
    out[len(total) :] = x[len(total) :]
    for part in parts(len(total)):
        moved = total.mean(weight, part)
        trained = slice(part.start, min(part.stop, n_train))
        count = trained.stop - trained.start
        if count > 0:
            moved[:count] = optimizer.step(moved[:count], moments[:, trained])
            step[trained] = moved[:count]
        moved += x[part]
        out[part] = moved
    return Moved(out, optimizer.keep(moments), kernels.norm(step))


def announced_control(control: ExactSum, members: int) -> F32:
    """c = float32(C / (N 2^48)): N the enrolled fleet, never the cohort."""
    c = np.empty(len(control), np.float32)
    for part in parts(len(control)):
        c[part] = control.mean(members, part)
    return c


def implied_delta_c(algorithm: Scaffold, c_a: F32, delta_y: F32, rate_sum: float) -> I64:
    """delta_c of option II on the grid, from the decoded vectors: what devices compute, too.

    ``c_a`` is the control of the announcement that the update names. C has moved on since;
    derived from it, c_i would part from C unseen. ``ValueError`` where it leaves the grid.
    """
    return kernels.derived_delta_c(c_a, delta_y, rate_sum, algorithm.control_damping)


def explicit_agrees(implied: I64, delta_c: F32, codec: Codec, layout: I64) -> bool:
    """Whether a delta_c of option II that travelled is the one ``implied`` by delta_y.

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
