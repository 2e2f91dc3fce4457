"""The float32 local steps in NumPy: one part of ``reference``."""

# ruff: noqa: PLR0917 - a kernel takes its arguments by position, in C too

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    "scale",
    "sgd_momentum_step",
    "sgd_step",
    "sgd_step_full",
]

F32 = NDArray[np.float32]


def sgd_step(y: F32, g: F32, lr: np.float32) -> None:
    """``y -= lr*g``."""
    y -= lr * g


def prox_step(y: F32, g: F32, x: F32, lr: np.float32, mu: np.float32) -> None:
    """``y -= lr*(g + mu*(y - x))``."""
    y -= lr * (g + mu * (y - x))


def prox_step_implicit(y: F32, g: F32, x: F32, lr: np.float32, mu: np.float32) -> None:
    """``y = ((y - lr*g) + (lr*mu)*x) / (1 + lr*mu)``."""
    pull = lr * mu
    y[:] = ((y - lr * g) + pull * x) / (np.float32(1) + pull)


def scaffold_step(y: F32, g: F32, c_i: F32, c: F32, lr: np.float32) -> None:
    """``y -= lr*((g - c_i) + c)``."""
    y -= lr * ((g - c_i) + c)


def scaffold_step_shift(y: F32, g: F32, d: F32, lr: np.float32) -> None:
    """``y -= lr*(g + d)``."""
    y -= lr * (g + d)


def sgd_step_full(y: F32, g: F32, lr: np.float32, clip: np.float32, decay: np.float32) -> None:
    """``sgd_step`` with ``clip*g + decay*y`` for g."""
    sgd_step(y, clip * g + decay * y, lr)


def prox_step_full(
    y: F32, g: F32, x: F32, lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32
) -> None:
    """``prox_step`` with ``clip*g + decay*y`` for g."""
    prox_step(y, clip * g + decay * y, x, lr, mu)


def prox_step_implicit_full(
    y: F32, g: F32, x: F32, lr: np.float32, mu: np.float32, clip: np.float32, decay: np.float32
) -> None:
    """``prox_step_implicit`` with ``clip*g + decay*y`` for g."""
    prox_step_implicit(y, clip * g + decay * y, x, lr, mu)


def scaffold_step_full(
    y: F32, g: F32, c_i: F32, c: F32, lr: np.float32, clip: np.float32, decay: np.float32
) -> None:
    """``scaffold_step`` with ``clip*g + decay*y`` for g."""
    scaffold_step(y, clip * g + decay * y, c_i, c, lr)


def scaffold_step_shift_full(
    y: F32, g: F32, d: F32, lr: np.float32, clip: np.float32, decay: np.float32
) -> None:
    """``scaffold_step_shift`` with ``clip*g + decay*y`` for g."""
    scaffold_step_shift(y, clip * g + decay * y, d, lr)


def sgd_momentum_step(
    y: F32, m: F32, g: F32, lr: np.float32, beta: np.float32, clip: np.float32, decay: np.float32
) -> None:
    """``m = beta*m + (clip*g + decay*y); y -= lr*m``."""
    m[:] = beta * m + (clip * g + decay * y)
    y -= lr * m


def prox_momentum_step(
    y: F32, m: F32, g: F32, x: F32, lr: np.float32, mu: np.float32,
    beta: np.float32, clip: np.float32, decay: np.float32,
) -> None:  # fmt: skip
    """``m = beta*m + ((clip*g + decay*y) + mu*(y - x)); y -= lr*m``."""
    m[:] = beta * m + ((clip * g + decay * y) + mu * (y - x))
    y -= lr * m


def scaffold_momentum_step(
    y: F32, m: F32, g: F32, d: F32, lr: np.float32,
    beta: np.float32, clip: np.float32, decay: np.float32,
) -> None:  # fmt: skip
    """``m = beta*m + ((clip*g + decay*y) + d); y -= lr*m``."""
    m[:] = beta * m + ((clip * g + decay * y) + d)
    y -= lr * m


def scale(g: F32, factor: np.float32) -> None:
    """``g *= factor``."""
    g *= factor
