"""The local steps as one loop each, compiled by Numba. ``reference`` is their specification."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kellet.kernels._jit import jit

__all__ = [
    "prox_step",
    "prox_step_implicit",
    "scaffold_step",
    "scaffold_step_shift",
    "sgd_step",
]

F32 = NDArray[np.float32]

ONE = np.float32(1)


@jit
def sgd_step(y: F32, g: F32, lr: np.float32) -> None:
    for i in range(y.size):
        y[i] -= lr * g[i]


@jit
def prox_step(y: F32, g: F32, x: F32, lr: np.float32, mu: np.float32) -> None:
    for i in range(y.size):
        y[i] -= lr * (g[i] + mu * (y[i] - x[i]))


@jit
def prox_step_implicit(y: F32, g: F32, x: F32, lr: np.float32, mu: np.float32) -> None:
    pull = lr * mu
    for i in range(y.size):
        y[i] = ((y[i] - lr * g[i]) + pull * x[i]) / (ONE + pull)


@jit
def scaffold_step(y: F32, g: F32, c_i: F32, c: F32, lr: np.float32) -> None:
    for i in range(y.size):
        y[i] -= lr * ((g[i] - c_i[i]) + c[i])


@jit
def scaffold_step_shift(y: F32, g: F32, d: F32, lr: np.float32) -> None:
    for i in range(y.size):
        y[i] -= lr * (g[i] + d[i])
