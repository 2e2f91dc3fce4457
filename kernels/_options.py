"""Clipping and weight decay, which every local step can be given beside its rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import _checks
from kellet.kernels.exact import sum_of_squares_of

__all__ = ["clip_factor", "clipping", "positive", "with_options"]

F32 = NDArray[np.float32]


def positive(name: str, value: float) -> float:
    """Return a limit: finite in float32 and above 0."""
    value = _checks.rate(name, value)
    if value == 0:
        raise ValueError(f"{name} must be positive")
    return value


def clip_factor(norm: float, limit: float) -> float:
    """Return what a gradient of this norm is multiplied by."""
    return 1.0 if norm <= limit else float(np.float32(limit / norm))


def clipping(g: F32, clip: float | None) -> Callable[[], float]:
    """Return what gives the factor that clips g at this moment."""
    if clip is None:
        return lambda: 1.0
    limit, squares = positive("clip", clip), sum_of_squares_of(g)
    return lambda: clip_factor(math.sqrt(squares()), limit)


def with_options(
    bind: Callable[[str], Callable[..., Any]],
    kernel: str,
    g: F32,
    *,
    rates: int,
    weight_decay: float,
    clip: float | None,
) -> Callable[..., Any]:
    """Return the step on its scalars, of which the first are ``rates``.

    Without decay and clipping it is the plain kernel. ``bind`` binds one by its name.
    """
    weight_decay = _checks.rate("weight_decay", weight_decay)
    factor = clipping(g, clip)
    plain = bind(kernel)
    decays = bool(np.float32(weight_decay) != 0)
    if clip is None and not decays:
        return plain
    full = bind(f"{kernel}_full")

    def run(*scalars: float) -> Any:
        scaled_by = factor()
        if scaled_by == 1.0 and not decays:
            return plain(*scalars)
        return full(*scalars[:rates], scaled_by, weight_decay, *scalars[rates:])

    return run
