"""Vectors held as int8 with a float32 scale a row, and the local steps on them.

A row's elements are ``values * scale``, values in [-127, 127]; the matrices of
a model have their output rows as rows, or the whole vector is cut into blocks of 64.
Steps round stochastically, from a hash of (seed, step, index) and nothing else,
so that an update smaller than one unit is not lost, but taken as often as it weighs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import _checks, _threads
from kellet.kernels._backend import active
from kellet.kernels.hash import at_step, fold, seed32
from kellet.kernels.table import LARGEST_SCALE, SMALLEST_SCALE

__all__ = [
    "Int8Rows",
    "bind_int8",
    "block_layout",
    "dequantise",
    "prox_step_int8",
    "quantise",
    "row_layout",
    "scaffold_step_int8",
    "sgd_step_int8",
]

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
I64 = NDArray[np.int64]

# The step's own name, and what stands beside the gradient.
OPERANDS = {
    "sgd_step_int8": ("int8_sgd_step", ("y", "g")),
    "prox_step_int8": ("int8_prox_step", ("y", "g", "x")),
    "scaffold_step_int8": ("int8_scaffold_step", ("y", "g", "d")),
}
_MAX_SIZE = 1 << 32  # an index of the hash has 32 bits


@dataclass(frozen=True, eq=False)
class Int8Rows:
    """A vector [n] of ``values[j] * scales[row of j]``, the rows one after the other.

    ``values`` int8 [n], ``scales`` float32 [rows] within [2**-40, 2**80],
    ``layout`` int64 [2*segments]: pairs of (rows, their length), which cover
    both. What does not fit together is refused with TypeError or ValueError.
    """

    values: I8
    scales: F32
    layout: I64

    def __post_init__(self) -> None:
        _checks.array("values", self.values, np.int8)
        _checks.array("scales", self.scales, np.float32)
        rows, held = _extent(self.layout)
        if (rows, held) != (self.scales.size, self.values.size):
            raise ValueError(
                f"layout is of {rows} rows and {held} values, "
                f"not of {self.scales.size} and {self.values.size}"
            )
        self.check_scales("scales")

    def check_scales(self, name: str) -> None:
        """Refuse scales out of bounds, NaN among them."""
        fit = (self.scales >= SMALLEST_SCALE) & (self.scales <= LARGEST_SCALE)
        if not fit.all():
            row = int(np.flatnonzero(~fit)[0])
            raise ValueError(f"{name}[{row}] = {self.scales[row]} is not within [2**-40, 2**80]")

    @property
    def size(self) -> int:
        """How many elements the vector has."""
        return self.values.size

    def copy(self) -> Int8Rows:
        """Return the same vector in memory of its own: a round's start, say."""
        return Int8Rows(self.values.copy(), self.scales.copy(), self.layout)


def _extent(layout: I64) -> tuple[int, int]:
    """Return how many rows and how many values a layout covers, once it has been found fit."""
    _checks.array("layout", layout, np.int64)
    if layout.size % 2 or (layout < 1).any():
        raise ValueError("layout must be pairs of (rows, their length), each at least 1")
    pairs = layout.reshape(-1, 2).tolist()
    held = sum(rows * length for rows, length in pairs)
    if held >= _MAX_SIZE:
        raise ValueError(f"layout covers {held} values; at most {_MAX_SIZE - 1} can be held")
    return sum(rows for rows, _ in pairs), held


def row_layout(shapes: Iterable[tuple[int, ...]]) -> I64:
    """Return the layout that gives each tensor's first axis its rows, for tensors in order.

    A tensor of one dimension is one row. Raises ValueError for one without elements.
    """
    pairs = []
    for shape in shapes:
        rows = shape[0] if len(shape) > 1 else 1
        length = int(np.prod(shape[1:] if len(shape) > 1 else shape, dtype=np.int64))
        if rows < 1 or length < 1:
            raise ValueError(f"a tensor of shape {tuple(shape)} has no elements")
        pairs.append((rows, length))
    return np.array(pairs, np.int64).reshape(-1)


def block_layout(n: int, length: int = 64) -> I64:
    """Return the layout of n elements in blocks, the last one with what remains.

    Blocks of 64 are the fastest of the short ones.
    """
    n = _checks.integer("n", n, 0, _MAX_SIZE)
    length = _checks.integer("length", length, 1, _MAX_SIZE)
    pairs = [(n // length, length), (1, n % length)]
    return np.array([pair for pair in pairs if 0 not in pair], np.int64).reshape(-1)


def quantise(
    v: F32, layout: I64, *, headroom: float = 1.0, seed: int | None = None, step: int = 0
) -> Int8Rows:
    """Return float32 values [n] as int8 rows.

    ``scale = max|v|*headroom/127`` of each row, and at least 2**-40: a row of zeros has
    that. Values are rounded to the nearest, ties to even; with a ``seed`` they are
    rounded stochastically, by the hash of (seed, step, index). ``headroom``, from 1 to
    127, leaves room for a resident row to grow. Raises ValueError for a row that is not finite,
    or so large that its scale would exceed 2**80.
    """
    _checks.array("v", v, np.float32)
    count, held = _extent(layout)
    if held != v.size:
        raise ValueError(f"layout covers {held} values, not v's {v.size}")
    headroom = _checks.number("headroom", headroom)
    if not 1 <= headroom <= 127:
        raise ValueError(f"headroom must lie in [1, 127], not {headroom}")
    rows = Int8Rows(np.zeros(held, np.int8), np.ones(count, np.float32), layout.copy())
    segments = layout.size // 2
    if seed is None:
        run = active().bind("quantise", (rows.values, rows.scales, v, rows.layout))
        bad = run(headroom, segments)
    else:
        run = active().bind("quantise_stochastic", (rows.values, rows.scales, v, rows.layout))
        bad = run(headroom, seed32(seed, step), segments)
    if bad >= 0:
        raise ValueError(f"row {bad} of v is not finite, or its scale would exceed 2**80")
    return rows


def dequantise(rows: Int8Rows, out: F32 | None = None) -> F32:
    """Return ``float32(values) * scale`` [n]."""
    if out is None:
        out = np.empty(rows.size, np.float32)
    _checks.array("out", out, np.float32, written=True)
    _checks.same_length(out=out, values=rows.values)
    _checks.apart({"out": out}, {"values": rows.values, "scales": rows.scales})
    segments = rows.layout.size // 2
    active().bind("dequantise", (out, rows.values, rows.scales, rows.layout))(segments)
    return out


def sgd_step_int8(y: Int8Rows, g: F32, lr: float, *, seed: int, step: int) -> int:
    """In place, ``y -= lr*g`` on int8 rows, rounded stochastically.

    A row whose largest magnitude then lies within [57, 127] units keeps its
    scale, and its weights without a gradient come out as they were. Another row gets the scale that
    makes its largest magnitude 117.6, within [2**-40, 2**80]. Updates are
    resolved to 2**-15 of a unit. A row whose update is not finite, or too large
    for a scale, is left as it was: the result is how many were.
    """
    return bind_int8("sgd_step_int8", y, g, seed=seed)(lr, step)


def prox_step_int8(
    y: Int8Rows, g: F32, x: Int8Rows, lr: float, mu: float, *, seed: int, step: int
) -> int:
    """In place, ``y -= lr*(g + mu*(y - x))`` on int8 rows; else as ``sgd_step_int8``.

    ``x`` is a copy of y from the round's start. ``mu = 0`` is ``sgd_step_int8``, bit for bit.
    """
    return bind_int8("prox_step_int8", y, g, x, seed=seed)(lr, mu, step)


def scaffold_step_int8(y: Int8Rows, g: F32, d: Int8Rows, lr: float, *, seed: int, step: int) -> int:
    """In place, ``y -= lr*(g + d)`` on int8 rows; else as ``sgd_step_int8``.

    ``d`` is the round's shift c - c_i in rows of the same layout. Its own error,
    known to the device, is taken out of delta_y at the end of the round.
    """
    return bind_int8("scaffold_step_int8", y, g, d, seed=seed)(lr, step)


def bind_int8(name: str, y: Int8Rows, g: F32, *others: Int8Rows, seed: int) -> Callable[..., int]:
    """Check once and return ``step(lr, step)``, with mu ``step(lr, mu, step)``. See ``bind``."""
    kernel, operands = OPERANDS[name]
    if len(others) != len(operands) - 2:
        raise TypeError(f"{name} takes {', '.join(operands)}, not {len(others) + 2} operands")
    held = dict(zip(operands, (y, g, *others), strict=True))
    read: dict[str, np.ndarray[Any, Any]] = {}
    for operand, rows in held.items():
        if operand == "g":
            continue
        if not isinstance(rows, Int8Rows):
            raise TypeError(f"{operand} must be Int8Rows, not {type(rows).__name__}")
        if not np.array_equal(rows.layout, y.layout):
            raise ValueError(f"{operand} must have y's layout")
        rows.check_scales(f"{operand}.scales")
        if operand != "y":
            read |= {f"{operand}.values": rows.values, f"{operand}.scales": rows.scales}
    _checks.array("y.values", y.values, np.int8, written=True)
    _checks.array("y.scales", y.scales, np.float32, written=True)
    _checks.array("g", g, np.float32)
    _checks.same_length(y=y.values, g=g)
    _checks.apart({"y.values": y.values, "y.scales": y.scales}, {"g": g, **read})
    folded = fold(seed)

    run = _in_pieces(kernel, y, g, others)
    if "x" not in held:

        def walk(lr: float, step: int) -> int:
            return run(_checks.rate("lr", lr), at_step(folded, step))

        return walk

    plain = _in_pieces("int8_sgd_step", y, g, ())

    def proximal(lr: float, mu: float, step: int) -> int:
        lr, mu = _checks.rate("lr", lr), _checks.rate("mu", mu)
        if np.float32(mu) == 0:
            return plain(lr, at_step(folded, step))
        return run(lr, mu, at_step(folded, step))

    return proximal


def _in_pieces(
    kernel: str, y: Int8Rows, g: F32, others: tuple[Int8Rows, ...]
) -> Callable[..., int]:
    """Bind a step, cut between rows where several threads may take it."""
    computes = active()

    def piece(part: RowsPart) -> Callable[..., Any]:
        own = y.values[part.elements], y.scales[part.rows]
        kept = np.empty(int(part.layout[1::2].max(initial=0)), np.int8)
        beside = [
            array
            for other in others
            for array in (other.values[part.elements], other.scales[part.rows])
        ]
        run = computes.bind(kernel, (*own, kept, g[part.elements], *beside, part.layout))
        first, segments = part.elements.start, part.layout.size // 2
        return lambda *scalars: int(run(*scalars, first, segments))

    whole = piece(RowsPart(slice(0, y.scales.size), slice(0, y.size), y.layout.copy()))
    if y.size < _threads.SHORTEST:
        return whole
    stepped = _threads.in_pieces(
        whole, lambda count: [piece(part) for part in parts_of(y.layout, count)]
    )

    def run(*scalars: float) -> int:
        left = stepped(*scalars)
        return left if isinstance(left, int) else sum(left)

    return run


class RowsPart(NamedTuple):
    """Some rows after one another: which, which elements, and the layout of these alone."""

    rows: slice
    elements: slice
    layout: I64


def parts_of(layout: I64, count: int) -> list[RowsPart]:
    """Cut a layout between rows into at most ``count`` parts of about the same size."""
    pairs = layout.reshape(-1, 2).tolist()
    share = -(-sum(rows * length for rows, length in pairs) // count)
    parts: list[list[list[int]]] = [[]]
    room = share
    for rows, length in pairs:
        while rows:
            if room <= 0:
                parts.append([])
                room = share
            taken = min(rows, -(-room // length))
            parts[-1].append([taken, length])
            rows -= taken  # noqa: PLW2901
            room -= taken * length
    cut = []
    row = start = 0
    for part in parts:
        some = np.array(part, np.int64).reshape(-1)
        rows, elements = int(some[::2].sum()), int((some[::2] * some[1::2]).sum())
        cut.append(RowsPart(slice(row, row + rows), slice(start, start + elements), some))
        row, start = row + rows, start + elements
    return cut
