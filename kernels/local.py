"""The local steps: one call updates the whole flat model in place.

All arrays are float32, contiguous, one-dimensional and of one length n.
A wrong array or rate is refused (TypeError, ValueError) before ``y`` changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import _checks
from kellet.kernels._backend import active

__all__ = [
    "StepName",
    "bind",
    "prox_step",
    "scaffold_step",
    "scaffold_step_shift",
    "sgd_step",
]

F32 = NDArray[np.float32]
StepName = Literal[
    "sgd_step", "prox_step", "prox_step_implicit", "scaffold_step", "scaffold_step_shift"
]

_OPERANDS = {
    "sgd_step": ("y", "g"),
    "prox_step": ("y", "g", "x"),
    "prox_step_implicit": ("y", "g", "x"),
    "scaffold_step": ("y", "g", "c_i", "c"),
    "scaffold_step_shift": ("y", "g", "d"),
}


def sgd_step(y: F32, g: F32, lr: float) -> None:
    """In place, ``y -= lr*g``: FedAvg's local step (McMahan et al. 2017, algorithm 1)."""
    bind("sgd_step", y, g)(lr)


def prox_step(y: F32, g: F32, x: F32, lr: float, mu: float, *, implicit: bool = False) -> None:
    """In place, ``y -= lr*(g + mu*(y - x))``: FedProx (Li et al. 2020, equation 2).

    ``x`` is the round's server model, copied before the first step. ``mu = 0``
    is ``sgd_step``, bit for bit. The step overshoots ``x`` once ``lr*mu > 1``
    and diverges from 2 up; ``implicit=True`` solves the proximal term instead,
    ``y = (y - lr*g + lr*mu*x) / (1 + lr*mu)``, and is stable at any strength.
    """
    bind("prox_step_implicit" if implicit else "prox_step", y, g, x)(lr, mu)


def scaffold_step(y: F32, g: F32, c_i: F32, c: F32, lr: float) -> None:
    """In place, ``y -= lr*((g - c_i) + c)``: SCAFFOLD (Karimireddy et al. 2020, algorithm 1).

    ``scaffold_step_shift`` reads one array less and rounds differently; the
    device uses that one throughout.
    """
    bind("scaffold_step", y, g, c_i, c)(lr)


def scaffold_step_shift(y: F32, g: F32, d: F32, lr: float) -> None:
    """In place, ``y -= lr*(g + d)`` with the round's shift ``d = c - c_i``."""
    bind("scaffold_step_shift", y, g, d)(lr)


def bind(name: StepName, *arrays: F32) -> Callable[..., None]:
    """Check the arrays once and return the step to call in the loop.

    ``bind("scaffold_step_shift", y, g, d)`` gives ``step(lr)``; the proximal
    steps give ``step(lr, mu)``. The arrays must keep their memory (no
    ``resize``); the step keeps them alive, and refuses a rate that is
    negative or not finite in float32.
    """
    operands = _OPERANDS.get(name)
    if operands is None:
        raise ValueError(f"no step {name!r}; there are {', '.join(_OPERANDS)}")
    if len(arrays) != len(operands):
        raise TypeError(f"{name} takes {', '.join(operands)}, not {len(arrays)} arrays")
    named: dict[str, np.ndarray[Any, Any]] = dict(zip(operands, arrays, strict=True))
    for operand, value in named.items():
        _checks.array(operand, value, np.float32, written=operand == "y")
    _checks.same_length(**named)
    y = named.pop("y")
    _checks.apart({"y": y}, named)

    computes = active()
    run = computes.bind(name, arrays)
    if "x" not in named:

        def step(lr: float) -> None:
            run(_checks.rate("lr", lr))

        return step

    plain = computes.bind("sgd_step", arrays[:2])

    def proximal(lr: float, mu: float) -> None:
        lr, mu = _checks.rate("lr", lr), _checks.rate("mu", mu)
        if np.float32(mu) == 0:
            plain(lr)
        else:
            run(lr, mu)

    return proximal
