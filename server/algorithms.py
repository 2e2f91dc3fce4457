"""The server half of each algorithm: how counted updates move the model and the control."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.protocol.messages import Codecs
from kellet.server.sums import ExactSum

__all__ = ["announced_control", "apply_mean", "codecs_of", "explicit_agrees", "weight_of"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


def codecs_of(algorithm: FedAvg) -> Codecs:
    """How updates of ``algorithm`` travel."""
    if isinstance(algorithm, Scaffold):
        assert algorithm.delta_c  # the value resolves "" when it is made
        return Codecs(delta_c=algorithm.delta_c)
    return Codecs()


def weight_of(algorithm: FedAvg, samples: int) -> int:
    """The integer weight of an update: n_i, or 1 where the mean is uniform."""
    return samples if algorithm.weighting == "samples" else 1


def apply_mean(x: F32, total: ExactSum, weight: int, server_lr: float, n_train: int) -> F32:
    """x + server_lr * mean(delta_y), computed in float64 and rounded once; a new array.

    ``x``: float32 [n_params]. ``total``: the weighted sum of delta_y over n_update
    entries, ``weight`` the sum of the weights. Buffers (behind n_train) are averaged
    plainly, frozen tensors (behind n_update) stay.
    """
    mean = total.mean(weight)
    mean[:n_train] *= server_lr
    out: F32 = kernels.aligned(len(x), np.float32)
    out[:] = x
    out[: len(mean)] = (x[: len(mean)].astype(np.float64) + mean).astype(np.float32)
    return out


def announced_control(control: ExactSum, members: int) -> F32:
    """c = float32(C / (N 2^48)): N the enrolled fleet, never the cohort."""
    return control.mean(members).astype(np.float32)


def explicit_agrees(implied: I64, delta_c: F32) -> bool:
    """Whether an explicit delta_c of option II is the one ``implied`` by delta_y, on the grid.

    Within the rounding of delta_c to float32 and one step of the grid.
    """
    exact = kernels.from_grid(implied)
    error = np.abs(exact - delta_c.astype(np.float64))
    return bool(np.all(error <= np.abs(exact) * 2.0**-23 + 2.0**-47))
