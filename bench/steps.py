"""The local steps, and their peers in NumPy."""

# A peer is written as its library's user would write it: in place where that needs no thought.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.case import Call, Case, Prepare
from bench.operands import Draw, Operands
from kellet import kernels

__all__ = ["BETA", "MU", "STEPS"]

LR = 0.01  # large enough that a peer which forgets a term is found out
LR_INT8 = 0.001  # about one scale in two hundred is refitted a step
MU = np.float32(0.1)
BETA = np.float32(0.9)
DECAY = np.float32(0.01)
CLIP = 1.0
SEED = 7


def _bound(name: Any, *arrays: str, mu: bool = False, **options: Any) -> Prepare:
    """Return what binds a step, and calls it with its rates."""

    def prepare(o: Operands) -> Call:
        step = kernels.bind(name, *(o[array] for array in arrays), **options)
        rates = (o["lr"], float(MU)) if mu else (o["lr"],)
        return lambda: step(*rates)

    return prepare


def _bound_int8(name: Any, *operands: str, mu: bool = False) -> Prepare:
    def prepare(o: Operands) -> Call:
        step = kernels.bind(name, *(o[operand] for operand in operands), seed=SEED)
        arguments = (o["lr"], float(MU), 3) if mu else (o["lr"], 3)
        return lambda: step(*arguments)

    return prepare


def _vectors(*names: str) -> Callable[[Draw], Operands]:
    def draw(d: Draw) -> Operands:
        return {name: d.normal() for name in names} | {"lr": LR}

    return draw


def _resident(length: int, *beside: str) -> Callable[[Draw], Operands]:
    """Int8 rows, and the same as float32 vectors for the twin."""

    def draw(d: Draw) -> Operands:
        rows = {name: d.rows(length) for name in ("y", *beside)}
        decoded = {f"{name}_f32": d.normal() for name in rows}
        return {**rows, **decoded, "g": d.normal(), "lr": LR_INT8}

    return draw


# --- NumPy with out=: one scratch vector, allocated before ---


def _out(work: Callable[[Operands, Any, Any], None]) -> Prepare:
    def prepare(o: Operands) -> Call:
        scratch, rate = kernels.aligned(o["y"].size), np.float32(o["lr"])
        return lambda: work(o, scratch, rate)

    return prepare


def _walk(y: Any, t: Any, lr: Any) -> None:
    np.multiply(t, lr, out=t)
    np.subtract(y, t, out=y)


def _sgd_out(o: Operands, t: Any, lr: Any) -> None:
    np.multiply(o["g"], lr, out=t)
    np.subtract(o["y"], t, out=o["y"])


def _prox_out(o: Operands, t: Any, lr: Any) -> None:
    np.subtract(o["y"], o["x"], out=t)
    np.multiply(t, MU, out=t)
    np.add(o["g"], t, out=t)
    _walk(o["y"], t, lr)


def _implicit_out(o: Operands, t: Any, lr: Any) -> None:
    y, pull = o["y"], lr * MU
    np.multiply(o["g"], lr, out=t)
    np.subtract(y, t, out=y)
    np.multiply(o["x"], pull, out=t)
    np.add(y, t, out=y)
    np.divide(y, np.float32(1) + pull, out=y)


def _scaffold_out(o: Operands, t: Any, lr: Any) -> None:
    np.subtract(o["g"], o["c_i"], out=t)
    np.add(t, o["c"], out=t)
    _walk(o["y"], t, lr)


def _shift_out(o: Operands, t: Any, lr: Any) -> None:
    np.add(o["g"], o["d"], out=t)
    _walk(o["y"], t, lr)


def _momentum_out(gradient: Callable[[Operands, Any], Any]) -> Prepare:
    def work(o: Operands, t: Any, lr: Any) -> None:
        np.multiply(o["m"], BETA, out=o["m"])
        np.add(o["m"], gradient(o, t), out=o["m"])
        np.multiply(o["m"], lr, out=t)
        np.subtract(o["y"], t, out=o["y"])

    return _out(work)


def _prox_gradient(o: Operands, t: Any) -> Any:
    np.subtract(o["y"], o["x"], out=t)
    np.multiply(t, MU, out=t)
    return np.add(o["g"], t, out=t)


STEPS = [
    Case(
        "sgd_step", "sgd_step", 12, _vectors("y", "g"), _bound("sgd_step", "y", "g"),
        {"numpy out=": _out(_sgd_out)}, bound=("y", "g"),
    ),
    Case(
        "prox_step", "prox_step", 16, _vectors("y", "g", "x"),
        _bound("prox_step", "y", "g", "x", mu=True), {"numpy out=": _out(_prox_out)},
        bound=("y", "g", "x"),
    ),
    Case(
        "prox_step_implicit", "prox_step", 16, _vectors("y", "g", "x"),
        _bound("prox_step_implicit", "y", "g", "x", mu=True), {"numpy out=": _out(_implicit_out)},
        bound=("y", "g", "x"),
    ),
    Case(
        "scaffold_step", "scaffold_step", 20, _vectors("y", "g", "c_i", "c"),
        _bound("scaffold_step", "y", "g", "c_i", "c"), {"numpy out=": _out(_scaffold_out)},
        bound=("y", "g", "c_i", "c"),
    ),
    Case(
        "scaffold_step_shift", "scaffold_step_shift", 16, _vectors("y", "g", "d"),
        _bound("scaffold_step_shift", "y", "g", "d"), {"numpy out=": _out(_shift_out)},
        bound=("y", "g", "d"),
    ),
    Case(
        "scaffold_step_shift, decay, clip", "scaffold_step_shift", 20, _vectors("y", "g", "d"),
        _bound("scaffold_step_shift", "y", "g", "d", weight_decay=float(DECAY), clip=CLIP),
    ),
    Case(
        "sgd_momentum_step", "sgd_momentum_step", 20, _vectors("y", "m", "g"),
        _bound("sgd_momentum_step", "y", "m", "g", beta=float(BETA)),
        {"numpy out=": _momentum_out(lambda o, t: o["g"])},
    ),
    Case(
        "prox_momentum_step", "prox_momentum_step", 24, _vectors("y", "m", "g", "x"),
        _bound("prox_momentum_step", "y", "m", "g", "x", mu=True, beta=float(BETA)),
        {"numpy out=": _momentum_out(_prox_gradient)},
    ),
    Case(
        "scaffold_momentum_step", "scaffold_momentum_step", 24, _vectors("y", "m", "g", "d"),
        _bound("scaffold_momentum_step", "y", "m", "g", "d", beta=float(BETA)),
        {"numpy out=": _momentum_out(lambda o, t: np.add(o["g"], o["d"], out=t))},
    ),
]  # fmt: skip

for _length in (64, 1024):
    _scales = 4 / _length  # bytes an element, for one reading or writing
    STEPS += [
        Case(
            f"sgd_step_int8, rows of {_length}", "sgd_step_int8", 6 + 2 * _scales,
            _resident(_length), _bound_int8("sgd_step_int8", "y", "g"),
            twin=_bound("sgd_step", "y_f32", "g"),
        ),
        Case(
            f"prox_step_int8, rows of {_length}", "prox_step_int8", 7 + 3 * _scales,
            _resident(_length, "x"), _bound_int8("prox_step_int8", "y", "g", "x", mu=True),
            twin=_bound("prox_step", "y_f32", "g", "x_f32", mu=True),
        ),
        Case(
            f"scaffold_step_int8, rows of {_length}", "scaffold_step_int8", 7 + 3 * _scales,
            _resident(_length, "d"), _bound_int8("scaffold_step_int8", "y", "g", "d"),
            twin=_bound("scaffold_step_shift", "y_f32", "g", "d_f32"),
        ),
        Case(
            f"scaffold_step_shift_rows, rows of {_length}", "scaffold_step_shift_rows",
            13 + _scales, _resident(_length, "d"),
            _bound("scaffold_step_shift_rows", "y_f32", "g", "d"),
            twin=_bound("scaffold_step_shift", "y_f32", "g", "d_f32"),
        ),
    ]  # fmt: skip
