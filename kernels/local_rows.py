"""The local steps on int8 rows: of weights held so, and of float32 weights whose shift is.

Int8 weights are rounded stochastically, from a hash of (seed, step, index) and nothing else,
so that an update smaller than one unit is not lost, but taken as often as it weighs.
Arguments that do not fit together are refused (TypeError, ValueError) before anything changes.
``weight_decay`` and ``clip`` act as in ``local``: before any correction. There is no local
momentum: its float32 buffer would take four times the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import _checks, _threads
from kellet.kernels._backend import active
from kellet.kernels._options import with_options
from kellet.kernels.hash import at_step, fold
from kellet.kernels.rows import Int8Rows, RowsPart, parts_of
from kellet.kernels.table import ROOM

__all__ = [
    "OPERANDS",
    "bind_rows",
    "prox_step_int8",
    "scaffold_step_int8",
    "scaffold_step_shift_rows",
    "sgd_step_int8",
]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

OPERANDS = {
    "sgd_step_int8": ("y", "g"),
    "prox_step_int8": ("y", "g", "x"),
    "scaffold_step_int8": ("y", "g", "d"),
    "scaffold_step_shift_rows": ("y", "g", "d"),
}
# The kernels' own names; all but the last round weights by the hash, and want a seed.
_KERNELS = {
    "sgd_step_int8": "int8_sgd_step",
    "prox_step_int8": "int8_prox_step",
    "scaffold_step_int8": "int8_scaffold_step",
    "scaffold_step_shift_rows": "scaffold_step_shift_rows",
}


def sgd_step_int8(
    y: Int8Rows,
    g: F32,
    lr: float,
    *,
    seed: int,
    step: int,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> int:
    """In place, ``y -= lr*g`` on int8 rows, rounded stochastically.

    A row whose largest magnitude then lies within [57, 127] units keeps its
    scale, and its weights without a gradient come out as they were. Another row gets the scale that
    makes its largest magnitude 117.6, within [2**-40, 2**80]. Updates are
    resolved to 2**-15 of a unit. A row whose update is not finite, or too large
    for a scale, is left as it was: the result is how many were.
    """
    bound = bind_rows("sgd_step_int8", y, g, seed=seed, weight_decay=weight_decay, clip=clip)
    return int(bound(lr, step))


def prox_step_int8(
    y: Int8Rows,
    g: F32,
    x: Int8Rows,
    lr: float,
    mu: float,
    *,
    seed: int,
    step: int,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> int:
    """In place, ``y -= lr*(g + mu*(y - x))`` on int8 rows; else as ``sgd_step_int8``.

    ``x`` is a copy of y from the round's start. ``mu = 0`` is ``sgd_step_int8``, bit for bit.
    """
    bound = bind_rows("prox_step_int8", y, g, x, seed=seed, weight_decay=weight_decay, clip=clip)
    return int(bound(lr, mu, step))


def scaffold_step_int8(
    y: Int8Rows,
    g: F32,
    d: Int8Rows,
    lr: float,
    *,
    seed: int,
    step: int,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> int:
    """In place, ``y -= lr*(g + d)`` on int8 rows; else as ``sgd_step_int8``.

    ``d`` is the round's shift c - c_i in rows of the same layout. Its own error,
    known to the device, is taken out of delta_y at the end of the round.
    """
    options: dict[str, Any] = {"weight_decay": weight_decay, "clip": clip}
    return int(bind_rows("scaffold_step_int8", y, g, d, seed=seed, **options)(lr, step))


def scaffold_step_shift_rows(
    y: F32,
    g: F32,
    d: Int8Rows,
    lr: float,
    *,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> None:
    """In place, ``y -= lr*(g + d)`` on float32 weights [n], the round's shift in int8 rows.

    The bits of ``scaffold_step_shift(y, g, dequantise(d), lr)``, for 13 bytes an element instead
    of 16, and 1 instead of 4 to hold.
    """
    bind_rows("scaffold_step_shift_rows", y, g, d, weight_decay=weight_decay, clip=clip)(lr)


def bind_rows(
    name: str,
    *arrays: Any,
    seed: int | None = None,
    weight_decay: float = 0.0,
    clip: float | None = None,
) -> Callable[..., Any]:
    """Check once and return the step, as ``bind`` says."""
    operands, kernel = OPERANDS[name], _KERNELS[name]
    if len(arrays) != len(operands):
        raise TypeError(f"{name} takes {', '.join(operands)}, not {len(arrays)} operands")
    layout = _check(name, dict(zip(operands, arrays, strict=True)))

    def bound(kernel: str, held: tuple[Any, ...]) -> Callable[..., Any]:
        return with_options(
            lambda one: _in_pieces(one, held, layout),
            kernel,
            held[1],
            rates=2 if "x" in operands[: len(held)] else 1,
            weight_decay=weight_decay,
            clip=clip,
        )

    run = bound(kernel, arrays)
    if name == "scaffold_step_shift_rows":
        if seed is not None:
            raise TypeError(f"{name} draws nothing: it takes no seed")

        def step_float(lr: float) -> None:
            run(_checks.rate("lr", lr))

        return step_float

    if seed is None:
        raise TypeError(f"{name} rounds stochastically: it needs a seed")
    folded = fold(seed)
    if "x" not in operands:

        def walk(lr: float, step: int) -> int:
            return int(run(_checks.rate("lr", lr), at_step(folded, step)))

        return walk

    plain = bound(_KERNELS["sgd_step_int8"], arrays[:2])

    def proximal(lr: float, mu: float, step: int) -> int:
        lr, mu = _checks.rate("lr", lr), _checks.rate("mu", mu)
        if np.float32(mu) == 0:
            return int(plain(lr, at_step(folded, step)))
        return int(run(lr, mu, at_step(folded, step)))

    return proximal


def _check(name: str, held: dict[str, Any]) -> I64:
    """Refuse operands that do not fit together; return a copy of the layout of those in rows."""
    resident = name != "scaffold_step_shift_rows"
    in_rows = {operand: held[operand] for operand in held if operand != "g"}
    if not resident:
        del in_rows["y"]
    for operand, rows in in_rows.items():
        if not isinstance(rows, Int8Rows):
            raise TypeError(f"{operand} must be Int8Rows, not {type(rows).__name__}")
    layout: I64 = next(iter(in_rows.values())).layout.copy()
    vectors: dict[str, Any] = {}
    for operand, value in held.items():
        if operand not in in_rows:
            _checks.array(operand, value, np.float32, written=operand == "y")
            vectors[operand] = value
            continue
        if not np.array_equal(value.layout, layout):
            raise ValueError(f"{operand} must have y's layout")
        value.check_scales(f"{operand}.scales")
        _checks.array(f"{operand}.values", value.values, np.int8, written=operand == "y")
        _checks.array(f"{operand}.scales", value.scales, np.float32, written=operand == "y")
        vectors |= {f"{operand}.values": value.values, f"{operand}.scales": value.scales}
    lengths = {operand: value for operand, value in vectors.items() if ".scales" not in operand}
    _checks.same_length(**lengths)
    written = {operand: value for operand, value in vectors.items() if operand.startswith("y")}
    read = {operand: value for operand, value in vectors.items() if operand not in written}
    _checks.apart(written, read)
    return layout


def _in_pieces(kernel: str, held: tuple[Any, ...], layout: I64) -> Callable[..., int]:
    """Bind a kernel, cut between rows where several threads may take it."""
    computes = active()
    resident = isinstance(held[0], Int8Rows)

    def piece(part: RowsPart) -> Callable[..., Any]:
        arrays: list[Any] = []
        for operand in held:
            if isinstance(operand, Int8Rows):
                arrays += [operand.values[part.elements], operand.scales[part.rows]]
            else:
                arrays.append(operand[part.elements])
        last: tuple[int, ...] = (part.layout.size // 2,)
        if resident:
            arrays.insert(2, np.empty(int(part.layout[1::2].max(initial=ROOM)), np.int8))
            last = (part.elements.start, *last)
        run = computes.bind(kernel, (*arrays, part.layout))
        return lambda *scalars: int(run(*scalars, *last) or 0)

    rows, n = int(layout[::2].sum()), held[1].size
    whole = piece(RowsPart(slice(0, rows), slice(0, n), layout))
    if n < _threads.SHORTEST:
        return whole
    stepped = _threads.in_pieces(
        whole, lambda count: [piece(part) for part in parts_of(layout, count)]
    )

    def run(*scalars: float) -> int:
        left = stepped(*scalars)
        return left if isinstance(left, int) else sum(left)

    return run
