"""The local steps: one call updates the whole flat model in place.

All arrays are float32, contiguous, one-dimensional and of one length n.
A wrong array or hyperparameter is refused (TypeError, ValueError) before anything
changes. Every step takes ``weight_decay``, which makes the gradient
``g + weight_decay*y``, and ``clip``, which first scales g down to that norm: both
come before any correction. Rates are rounded to float32 once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import _checks, _threads
from kellet.kernels.exact import sum_of_squares_of
from kellet.kernels.rows import OPERANDS as INT8_OPERANDS
from kellet.kernels.rows import bind_int8

__all__ = [
    "StepName",
    "advance_rate_sum",
    "bind",
    "clip_norm",
    "prox_momentum_step",
    "prox_step",
    "scaffold_momentum_step",
    "scaffold_step",
    "scaffold_step_shift",
    "sgd_momentum_step",
    "sgd_step",
]

F32 = NDArray[np.float32]
StepName = Literal[
    "sgd_step",
    "prox_step",
    "prox_step_implicit",
    "scaffold_step",
    "scaffold_step_shift",
    "sgd_momentum_step",
    "prox_momentum_step",
    "scaffold_momentum_step",
    "sgd_step_int8",
    "prox_step_int8",
    "scaffold_step_int8",
]

_OPERANDS = {
    "sgd_step": ("y", "g"),
    "prox_step": ("y", "g", "x"),
    "prox_step_implicit": ("y", "g", "x"),
    "scaffold_step": ("y", "g", "c_i", "c"),
    "scaffold_step_shift": ("y", "g", "d"),
    "sgd_momentum_step": ("y", "m", "g"),
    "prox_momentum_step": ("y", "m", "g", "x"),
    "scaffold_momentum_step": ("y", "m", "g", "d"),
}
_WRITTEN = ("y", "m")


def sgd_step(
    y: F32, g: F32, lr: float, *, weight_decay: float = 0.0, clip: float | None = None
) -> None:
    """In place, ``y -= lr*g``: FedAvg's local step (McMahan et al. 2017, algorithm 1)."""
    bind("sgd_step", y, g, weight_decay=weight_decay, clip=clip)(lr)


def prox_step(
    y: F32,
    g: F32,
    x: F32,
    lr: float,
    mu: float,
    *,
    implicit: bool = False,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> None:
    """In place, ``y -= lr*(g + mu*(y - x))``: FedProx (Li et al. 2020, equation 2).

    ``x`` is the round's server model, copied before the first step. ``mu = 0``
    is ``sgd_step``, bit for bit. The step overshoots ``x`` once ``lr*mu > 1``
    and diverges from 2 up; ``implicit=True`` solves the proximal term instead,
    ``y = (y - lr*g + lr*mu*x) / (1 + lr*mu)``, and is stable at any strength.
    """
    name: StepName = "prox_step_implicit" if implicit else "prox_step"
    bind(name, y, g, x, weight_decay=weight_decay, clip=clip)(lr, mu)


def scaffold_step(
    y: F32,
    g: F32,
    c_i: F32,
    c: F32,
    lr: float,
    *,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> None:
    """In place, ``y -= lr*((g - c_i) + c)``: SCAFFOLD (Karimireddy et al. 2020, algorithm 1).

    ``scaffold_step_shift`` reads one array less and rounds differently; the
    device uses that one throughout.
    """
    bind("scaffold_step", y, g, c_i, c, weight_decay=weight_decay, clip=clip)(lr)


def scaffold_step_shift(
    y: F32, g: F32, d: F32, lr: float, *, weight_decay: float = 0.0, clip: float | None = None
) -> None:
    """In place, ``y -= lr*(g + d)`` with the round's shift ``d = c - c_i``."""
    bind("scaffold_step_shift", y, g, d, weight_decay=weight_decay, clip=clip)(lr)


def sgd_momentum_step(
    y: F32,
    m: F32,
    g: F32,
    lr: float,
    *,
    beta: float,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> None:
    """In place, ``m = beta*m + g`` and ``y -= lr*m``. The buffer m is zero at a round's start."""
    bind("sgd_momentum_step", y, m, g, beta=beta, weight_decay=weight_decay, clip=clip)(lr)


def prox_momentum_step(  # noqa: PLR0917 - as prox_step, and the buffer
    y: F32,
    m: F32,
    g: F32,
    x: F32,
    lr: float,
    mu: float,
    *,
    beta: float,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> None:
    """In place, ``m = beta*m + (g + mu*(y - x))`` and ``y -= lr*m``; ``mu = 0`` leaves mu out."""
    step = bind("prox_momentum_step", y, m, g, x, beta=beta, weight_decay=weight_decay, clip=clip)
    step(lr, mu)


def scaffold_momentum_step(
    y: F32,
    m: F32,
    g: F32,
    d: F32,
    lr: float,
    *,
    beta: float,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> None:
    """In place, ``m = beta*m + (g + d)`` and ``y -= lr*m`` with the round's shift ``d = c - c_i``.

    ``advance_rate_sum`` counts such a step into A.
    """
    bind("scaffold_momentum_step", y, m, g, d, beta=beta, weight_decay=weight_decay, clip=clip)(lr)


def advance_rate_sum(
    rate_sum: float, weight: float, lr: float, beta: float = 0.0
) -> tuple[float, float]:
    """Return A and s after one more step: ``s = beta*s + 1``, ``A += lr*s``, both 0 at the start.

    A gradient of one step goes on acting through the momentum buffer: y has
    moved against a constant corrected gradient by exactly A times that.
    Without momentum s is 1 and A the sum of the rates.
    """
    weight = float(np.float32(_fraction("beta", beta))) * weight + 1.0
    return rate_sum + float(np.float32(_checks.rate("lr", lr))) * weight, weight


def clip_norm(g: F32, limit: float) -> float:
    """Scale g in place so that its norm is at most ``limit``; return the norm that it had.

    The factor is ``float32(limit/norm)``. A gradient that is not finite becomes NaN
    in part or whole, as the step with it would.
    """
    _checks.array("g", g, np.float32, written=True)
    limit = _positive("clip", limit)
    norm = math.sqrt(sum_of_squares_of(g)())
    factor = _clip_factor(norm, limit)
    if factor != 1.0:
        _threads.bind("scale", (g,))(factor)
    return norm


def bind(
    name: StepName,
    *arrays: Any,
    weight_decay: float = 0.0,
    clip: float | None = None,
    beta: float | None = None,
    seed: int | None = None,
) -> Callable[..., Any]:
    """Check the arrays once and return the step to call in the loop.

    ``bind("scaffold_step_shift", y, g, d)`` gives ``step(lr)``; the proximal
    steps give ``step(lr, mu)``. The momentum steps want ``beta``. The steps on int8 rows want
    ``seed`` and give ``step(lr, step)`` or ``step(lr, mu, step)``, where step counts from the
    round's start. The arrays must keep their memory (no ``resize``); the step
    keeps them alive, and refuses a rate that is negative or not finite in float32.
    """
    if name in INT8_OPERANDS:
        if seed is None:
            raise TypeError(f"{name} rounds stochastically: it needs a seed")
        if weight_decay != 0 or clip is not None or beta is not None:
            raise ValueError(f"{name} takes no weight_decay, clip or beta; clip_norm(g) clips")
        return bind_int8(name, *arrays, seed=seed)
    operands = _OPERANDS.get(name)
    if operands is None:
        raise ValueError(f"no step {name!r}; there are {', '.join([*_OPERANDS, *INT8_OPERANDS])}")
    if len(arrays) != len(operands):
        raise TypeError(f"{name} takes {', '.join(operands)}, not {len(arrays)} arrays")
    if seed is not None:
        raise TypeError(f"{name} draws nothing: it takes no seed")
    named: dict[str, np.ndarray[Any, Any]] = dict(zip(operands, arrays, strict=True))
    for operand, value in named.items():
        _checks.array(operand, value, np.float32, written=operand in _WRITTEN)
    _checks.same_length(**named)
    written = {operand: value for operand, value in named.items() if operand in _WRITTEN}
    read = {operand: value for operand, value in named.items() if operand not in _WRITTEN}
    _checks.apart(written, read)
    weight_decay = _checks.rate("weight_decay", weight_decay)
    clip = None if clip is None else _positive("clip", clip)
    if ("m" in named) != (beta is not None):
        raise TypeError(f"{name} {'needs' if beta is None else 'takes no'} beta")
    beta = None if beta is None else _fraction("beta", beta)

    with_options = partial(
        _with_options, g=named["g"], weight_decay=weight_decay, clip=clip, beta=beta
    )
    run = with_options(name, arrays)
    if "x" not in named:

        def step(lr: float) -> None:
            run(_checks.rate("lr", lr))

        return step

    without: StepName = "sgd_step" if beta is None else "sgd_momentum_step"
    plain = with_options(without, arrays[:-1])

    def proximal(lr: float, mu: float) -> None:
        lr, mu = _checks.rate("lr", lr), _checks.rate("mu", mu)
        if np.float32(mu) == 0:
            plain(lr)
        else:
            run(lr, mu)

    return proximal


def _with_options(
    name: StepName,
    arrays: tuple[F32, ...],
    g: F32,
    *,
    weight_decay: float,
    clip: float | None,
    beta: float | None,
) -> Callable[..., Any]:
    """Return the step of the rates alone. Without decay and clipping it is the plain kernel."""
    factor = _factor_of(g, clip)
    if beta is not None:
        momentum = _threads.bind(name, arrays)
        return lambda *rates: momentum(*rates, beta, factor(), weight_decay)
    plain = _threads.bind(name, arrays)
    decays = bool(np.float32(weight_decay) != 0)
    if clip is None and not decays:
        return plain
    full = _threads.bind(f"{name}_full", arrays)

    def run(*rates: float) -> None:
        scaled_by = factor()
        if scaled_by == 1.0 and not decays:
            plain(*rates)
        else:
            full(*rates, scaled_by, weight_decay)

    return run


def _factor_of(g: F32, clip: float | None) -> Callable[[], float]:
    """Return what gives the factor that clips g at this moment."""
    if clip is None:
        return lambda: 1.0
    squares = sum_of_squares_of(g)
    return lambda: _clip_factor(math.sqrt(squares()), clip)


def _clip_factor(norm: float, limit: float) -> float:
    return 1.0 if norm <= limit else float(np.float32(limit / norm))


def _positive(name: str, value: float) -> float:
    value = _checks.rate(name, value)
    if value == 0:
        raise ValueError(f"{name} must be positive")
    return value


def _fraction(name: str, value: float) -> float:
    """Return a momentum: at least 0, and below 1 in float32."""
    value = _checks.rate(name, value)
    if not np.float32(value) < 1:
        raise ValueError(f"{name} must lie in [0, 1), not {value}")
    return value
