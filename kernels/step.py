"""The local steps as one loop each, compiled by Numba. ``reference`` is their specification."""

# ruff: noqa: PLR0917 - a kernel takes its arguments by position, in C too

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kellet.kernels._jit import jit

__all__ = [
    "prox_momentum_step",
    "prox_step",
    "prox_step_full",
    "prox_step_implicit",
    "prox_step_implicit_full",
    "scaffold_momentum_step",
    "scaffold_step",
    "scaffold_step_full",
    "scaffold_step_shift",
    "scaffold_step_shift_full",
    "scaffold_step_shift_rows",
    "scaffold_step_shift_rows_full",
    "scale",
    "sgd_momentum_step",
    "sgd_step",
    "sgd_step_full",
]

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
I64 = NDArray[np.int64]

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


# The same with a clipped gradient and weight decay: g is (clip*g + decay*y).


@jit
def sgd_step_full(y: F32, g: F32, lr: np.float32, clip: np.float32, decay: np.float32) -> None:
    for i in range(y.size):
        y[i] -= lr * (clip * g[i] + decay * y[i])


@jit
def prox_step_full(
    y: F32, g: F32, x: F32, lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32
) -> None:
    for i in range(y.size):
        y[i] -= lr * ((clip * g[i] + decay * y[i]) + mu * (y[i] - x[i]))


@jit
def prox_step_implicit_full(
    y: F32, g: F32, x: F32, lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32
) -> None:
    pull = lr * mu
    for i in range(y.size):
        gradient = clip * g[i] + decay * y[i]
        y[i] = ((y[i] - lr * gradient) + pull * x[i]) / (ONE + pull)


@jit
def scaffold_step_full(
    y: F32, g: F32, c_i: F32, c: F32, lr: np.float32, clip: np.float32, decay: np.float32
) -> None:
    for i in range(y.size):
        y[i] -= lr * (((clip * g[i] + decay * y[i]) - c_i[i]) + c[i])


@jit
def scaffold_step_shift_full(
    y: F32, g: F32, d: F32, lr: np.float32, clip: np.float32, decay: np.float32
) -> None:
    for i in range(y.size):
        y[i] -= lr * ((clip * g[i] + decay * y[i]) + d[i])


# The shift as int8 rows, which ``resident`` explains. Unsigned positions spare the vectoriser
# Python's negative indices.


@jit
def scaffold_step_shift_rows(
    y: F32, g: F32, d: I8, d_scales: F32, layout: I64, lr: np.float32, segments: np.int64
) -> None:
    r = start = np.uint64(0)
    for segment in range(segments):
        length = np.uint64(layout[2 * segment + 1])
        for _ in range(layout[2 * segment]):
            scale = d_scales[r]
            for i in range(start, start + length):
                y[i] -= lr * (g[i] + np.float32(d[i]) * scale)
            r += np.uint64(1)
            start += length


@jit
def scaffold_step_shift_rows_full(
    y: F32, g: F32, d: I8, d_scales: F32, layout: I64,
    lr: np.float32, clip: np.float32, decay: np.float32, segments: np.int64,
) -> None:  # fmt: skip
    r = start = np.uint64(0)
    for segment in range(segments):
        length = np.uint64(layout[2 * segment + 1])
        for _ in range(layout[2 * segment]):
            scale = d_scales[r]
            for i in range(start, start + length):
                y[i] -= lr * ((clip * g[i] + decay * y[i]) + np.float32(d[i]) * scale)
            r += np.uint64(1)
            start += length


@jit
def sgd_momentum_step(
    y: F32, m: F32, g: F32, lr: np.float32, beta: np.float32, clip: np.float32, decay: np.float32
) -> None:
    for i in range(y.size):
        m[i] = beta * m[i] + (clip * g[i] + decay * y[i])
        y[i] -= lr * m[i]


@jit
def prox_momentum_step(
    y: F32, m: F32, g: F32, x: F32, lr: np.float32, mu: np.float32,
    beta: np.float32, clip: np.float32, decay: np.float32,
) -> None:  # fmt: skip
    for i in range(y.size):
        m[i] = beta * m[i] + ((clip * g[i] + decay * y[i]) + mu * (y[i] - x[i]))
        y[i] -= lr * m[i]


@jit
def scaffold_momentum_step(
    y: F32, m: F32, g: F32, d: F32, lr: np.float32,
    beta: np.float32, clip: np.float32, decay: np.float32,
) -> None:  # fmt: skip
    for i in range(y.size):
        m[i] = beta * m[i] + ((clip * g[i] + decay * y[i]) + d[i])
        y[i] -= lr * m[i]


@jit
def scale(g: F32, factor: np.float32) -> None:
    for i in range(g.size):
        g[i] *= factor
