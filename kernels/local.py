"""The local steps: one call updates the whole flat model in place.

All arrays are float32, contiguous, one-dimensional and of one length n.
A wrong array or hyperparameter is refused (TypeError, ValueError) before anything
changes. Every step takes ``weight_decay``, which makes the gradient
``g + weight_decay*y``, and ``clip``, which first scales g down to that norm: both
come before any correction. Rates are rounded to float32 once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import _checks, _threads
from kellet.kernels._options import clip_factor, clipping, positive, with_options
from kellet.kernels.exact import sum_of_squares_of
from kellet.kernels.local_rows import OPERANDS as ROW_OPERANDS
from kellet.kernels.local_rows import bind_rows

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
    "scaffold_step_shift_rows",
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


def clip_norm(g: F32 | Sequence[F32], limit: float) -> float:
    """Scale g in place so that its norm is at most ``limit``; return the norm that it had.

    A gradient in several vectors is passed as a sequence of them and clipped as one.
    The factor is ``float32(limit/norm)``. A gradient that is not finite becomes NaN
    in part or whole, as the step with it would.
    """
    parts = [g] if isinstance(g, np.ndarray) else list(g)
    for part in parts:
        _checks.array("g", part, np.float32, written=True)
    limit = positive("clip", limit)
    total = 0.0
    for part in parts:
        total += sum_of_squares_of(part)()
    norm = math.sqrt(total)
    factor = clip_factor(norm, limit)
    if factor != 1.0:
        for part in parts:
            _threads.bind("scale", (part,))(factor)
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
    if name in ROW_OPERANDS:
        if beta is not None:
            raise TypeError(
                f"{name} takes no beta: a momentum buffer in float32 would be "
                "four times the int8 vector that it saves"
            )
        return bind_rows(name, *arrays, weight_decay=weight_decay, clip=clip, seed=seed)
    operands = _OPERANDS.get(name)
    if operands is None:
        raise ValueError(f"no step {name!r}; there are {', '.join([*_OPERANDS, *ROW_OPERANDS])}")
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
    if ("m" in named) != (beta is not None):
        raise TypeError(f"{name} {'needs' if beta is None else 'takes no'} beta")

    def kernel(of: StepName, held: tuple[F32, ...]) -> Callable[..., Any]:
        """Return a step of the rates alone."""
        if beta is not None:
            return _with_momentum(of, held, named["g"], beta, weight_decay, clip)
        return with_options(
            lambda one: _threads.bind(one, held),
            of,
            named["g"],
            rates=2 if "x" in named else 1,
            weight_decay=weight_decay,
            clip=clip,
        )

    run = kernel(name, arrays)
    if "x" not in named:

        def step(lr: float) -> None:
            run(_checks.rate("lr", lr))

        return step

    plain = kernel("sgd_step" if beta is None else "sgd_momentum_step", arrays[:-1])

    def proximal(lr: float, mu: float) -> None:
        lr, mu = _checks.rate("lr", lr), _checks.rate("mu", mu)
        if np.float32(mu) == 0:
            plain(lr)
        else:
            run(lr, mu)

    return proximal


def _with_momentum(  # noqa: PLR0917 - as bind's
    name: StepName,
    arrays: tuple[F32, ...],
    g: F32,
    beta: float,
    weight_decay: float,
    clip: float | None,
) -> Callable[..., Any]:
    """Return the step of the rates alone; its kernel always clips and decays."""
    beta = _fraction("beta", beta)
    weight_decay = _checks.rate("weight_decay", weight_decay)
    factor = clipping(g, clip)
    momentum = _threads.bind(name, arrays)
    return lambda *rates: momentum(*rates, beta, factor(), weight_decay)


def _fraction(name: str, value: float) -> float:
    """Return a momentum: at least 0, and below 1 in float32."""
    value = _checks.rate(name, value)
    if not np.float32(value) < 1:
        raise ValueError(f"{name} must lie in [0, 1), not {value}")
    return value
