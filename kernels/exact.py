"""Sums that do not depend on their order, and the reductions beside them.

A float sum depends on order, workers and restarts; a sum of integers does
not. A value v becomes ``q = rint(v * 2**48)``, and q times an integer weight is
added into a 128-bit accumulator held as two arrays, ``hi*2**64 + lo``.
Arrays are contiguous, one-dimensional and of one length n; wrong arguments
are refused (TypeError, ValueError) before anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import _checks, _threads
from kellet.kernels._backend import active
from kellet.kernels.hash import seed32
from kellet.kernels.rows import Int8Rows, dequantise
from kellet.kernels.table import GRID_LIMIT

__all__ = [
    "accumulate",
    "add_modular",
    "add_scaled",
    "add_weighted",
    "aligned",
    "control_shift",
    "derived_delta_c",
    "distance",
    "from_grid",
    "limbs_to_float64",
    "linear_digest",
    "norm",
    "subtract_modular",
    "sum_of_squares",
    "to_grid",
]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_BLOCK = 1024  # of the sums of squares
_ALIGNMENT = 64  # a cache line, and the widest vector register


def aligned(n: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Return n zeros that start on a 64-byte boundary, allocated up to the next one."""
    n = _checks.integer("n", n, 0, 1 << 62)
    kind = np.dtype(dtype)
    size = -(-n * kind.itemsize // _ALIGNMENT) * _ALIGNMENT
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.__array_interface__["data"][0] % _ALIGNMENT
    values: NDArray[Any] = raw[start : start + size].view(kind)
    return values[:n]


def to_grid(v: F32 | F64, out: I64 | None = None) -> I64:
    """Return ``rint(v * 2**48)`` [n], ties to even, of float32 or float64 values.

    Raises ValueError, and leaves ``out`` as it was, where a value is not
    finite or not inside (-2**14, 2**14).
    """
    _checks.array("v", v, np.float32, np.float64)
    out = _output(out, np.int64, v=v)
    kind = "f32" if v.dtype == np.float32 else "f64"
    _refuse_off_grid("v", active().bind(f"off_grid_{kind}", (v,))(), v)
    active().bind(f"to_grid_{kind}", (out, v))()
    return out


def from_grid(q: I64) -> F64:
    """Return ``q * 2**-48`` [n] in float64, rounded once where q takes more than 53 bits."""
    _checks.array("q", q, np.int64)
    v = np.empty(q.size)
    active().bind("from_grid", (v, q))()
    return v


def add_scaled(lo: U64, hi: I64, q: I64, weight: int) -> None:
    """In place, ``hi*2**64 + lo += q*weight``; a negative weight subtracts.

    The weight is an integer with ``|weight| < 2**31``; sums wrap modulo 2**128.
    """
    _checks.array("lo", lo, np.uint64, written=True)
    _checks.array("hi", hi, np.int64, written=True)
    _checks.array("q", q, np.int64)
    _checks.same_length(lo=lo, hi=hi, q=q)
    _checks.apart({"lo": lo, "hi": hi}, {"q": q})
    weight = _checks.integer("weight", weight, 1 - (1 << 31), 1 << 31)
    _threads.bind("add_scaled", (lo, hi, q))(weight)


def accumulate(lo: U64, hi: I64, v: F32 | Int8Rows, weight: int) -> None:
    """In place, ``hi*2**64 + lo += rint(v * 2**48) * weight``, in one pass.

    The bits of ``add_scaled(lo, hi, to_grid(v), weight)``, for a float32 vector or
    for int8 rows, which are decoded on the way. The limbs are as they were
    where a value is refused as by ``to_grid``.
    """
    decoded: NDArray[Any] = v.values if isinstance(v, Int8Rows) else v
    _checks.array("lo", lo, np.uint64, written=True)
    _checks.array("hi", hi, np.int64, written=True)
    _checks.array("v", decoded, np.int8 if isinstance(v, Int8Rows) else np.float32)
    _checks.same_length(lo=lo, hi=hi, v=decoded)
    _checks.apart({"lo": lo, "hi": hi}, {"v": decoded})
    weight = _checks.integer("weight", weight, 1 - (1 << 31), 1 << 31)
    if isinstance(v, Int8Rows):
        if v.scales.max(initial=0) * 128 >= GRID_LIMIT:  # one might leave the grid: look at each
            decoded = dequantise(v)
            _refuse_off_grid("v", active().bind("off_grid_f32", (decoded,))(), decoded)
        run = active().bind("accumulate_int8", (lo, hi, v.values, v.scales, v.layout))
        run(weight, v.layout.size // 2)
        return
    _refuse_off_grid("v", active().bind("off_grid_f32", (v,))(), v)
    _threads.bind("accumulate", (lo, hi, v))(weight)


def add_weighted(total: F64, v: F32 | F64 | Int8Rows, weight: float) -> None:
    """In place, ``total += weight*v`` in float64: a mean that streams, where order may matter.

    ``v`` is float32, float64, or int8 rows, which are decoded on the way.
    """
    _checks.array("total", total, np.float64, written=True)
    weight = _checks.number("weight", weight)
    if isinstance(v, Int8Rows):
        _checks.same_length(total=total, v=v.values)
        _checks.apart({"total": total}, {"v": v.values, "v.scales": v.scales})
        run = active().bind("dequantise_add", (total, v.values, v.scales, v.layout))
        run(weight, v.layout.size // 2)
        return
    _checks.array("v", v, np.float32, np.float64)
    _checks.same_length(total=total, v=v)
    _checks.apart({"total": total}, {"v": v})
    kind = "f32" if v.dtype == np.float32 else "f64"
    _threads.bind(f"add_weighted_{kind}", (total, v))(weight)


def add_modular(total: U64, part: U64) -> None:
    """In place, ``total += part`` modulo 2**64: how masked updates are summed."""
    _modular("add_modular", total, part)


def subtract_modular(total: U64, part: U64) -> None:
    """In place, ``total -= part`` modulo 2**64: how masks are taken off."""
    _modular("subtract_modular", total, part)


def _modular(kernel: str, total: U64, part: U64) -> None:
    _checks.array("total", total, np.uint64, written=True)
    _checks.array("part", part, np.uint64)
    _checks.same_length(total=total, part=part)
    _checks.apart({"total": total}, {"part": part})
    active().bind(kernel, (total, part))()


def limbs_to_float64(lo: U64, hi: I64) -> F64:
    """Return the float64 [n] nearest to the integers ``hi*2**64 + lo``, ties to even.

    The grid's scale is not taken off: multiply by ``2**-48``, which is exact.
    """
    _checks.array("lo", lo, np.uint64)
    _checks.array("hi", hi, np.int64)
    _checks.same_length(lo=lo, hi=hi)
    out = np.empty(lo.size)
    active().bind("limbs_to_float64", (out, lo, hi))()
    return out


def derived_delta_c(c_a: F32, delta_y: F32, rate_sum: float, damping: float = 1.0) -> I64:
    """Return delta_c [n] on the grid: ``-damping*(c_a + delta_y/rate_sum)``.

    SCAFFOLD's option II (Karimireddy et al. 2020, equation 4) as a difference,
    in float64, out of what both sides hold. ``c_a`` is the control decoded from the
    announcement, ``delta_y`` the decoded update, ``rate_sum`` the sum of the rates of
    the steps run. ``damping``, announced with the round, in (0, 1], lets a control follow
    only in part, where int8 weights make delta_y noisy; 1 is the paper's line.
    Device and server call this one function. Raises ValueError where a result
    is not finite or not inside (-2**14, 2**14).
    """
    _checks.array("c_a", c_a, np.float32)
    _checks.array("delta_y", delta_y, np.float32)
    _checks.same_length(c_a=c_a, delta_y=delta_y)
    rate_sum = _checks.number("rate_sum", rate_sum)
    if rate_sum <= 0:
        raise ValueError(f"rate_sum must be positive, not {rate_sum}: no step was run")
    damping = _checks.number("damping", damping)
    if not 0 < damping <= 1:
        raise ValueError(f"damping must lie in (0, 1], not {damping}")
    q = np.empty(c_a.size, np.int64)
    bad = active().bind("derived_delta_c", (q, c_a, delta_y))(rate_sum, damping)
    if bad >= 0:
        raise ValueError(
            f"delta_c[{bad}] leaves the grid, whose values lie inside ±{GRID_LIMIT:g}: "
            f"c_a {c_a[bad]}, delta_y {delta_y[bad]}, rate_sum {rate_sum}"
        )
    return q


def control_shift(c: F32, q_ci: I64, out: F32 | None = None) -> F32:
    """Return the round's shift [n], ``float32(float64(c) - q_ci * 2**-48)``."""
    _checks.array("c", c, np.float32)
    _checks.array("q_ci", q_ci, np.int64)
    _checks.same_length(c=c, q_ci=q_ci)
    out = _output(out, np.float32, c=c, q_ci=q_ci)
    active().bind("control_shift", (out, c, q_ci))()
    return out


def sum_of_squares(v: F32 | F64) -> float:
    """Return the float64 sum of squares of float32 or float64 values, in one fixed order."""
    _checks.array("v", v, np.float32, np.float64)
    return sum_of_squares_of(v)()


def sum_of_squares_of(v: F32 | F64) -> Callable[[], float]:
    """Bind ``sum_of_squares`` to an array that has been checked."""
    computes = active()
    if v.dtype == np.float64:
        return computes.bind("sum_of_squares_f64", (v,))
    whole = computes.bind("sum_of_squares_f32", (v,))
    if v.size < _threads.SHORTEST:
        return whole
    # In pieces: whole blocks of 1024 by any thread; then, as in one piece, added in their order,
    # after them the block that is not whole, and the last n % 8 elements one by one.
    sums = np.empty(v.size // _BLOCK)
    end, last = sums.size * _BLOCK, v.size - v.size % 8
    part = computes.bind("sum_of_squares_f32", (v[end:last],))

    def piece(start: int, stop: int) -> Callable[[], None]:
        arrays = sums[start:stop], v[start * _BLOCK : stop * _BLOCK]
        return computes.bind("squares_of_blocks", arrays)

    def in_order() -> float:
        blocks()
        total = float(np.add.accumulate(sums)[-1]) + float(part())
        for value in v[last:].tolist():
            total += value * value
        return total

    blocks = _threads.in_pieces(
        piece(0, sums.size),
        lambda count: [piece(*ends) for ends in pairwise(_threads.cuts(sums.size, 8, count))],
    )
    return lambda: float(whole()) if _threads.threads() == 1 else in_order()


def norm(v: F32 | F64) -> float:
    """Return the Euclidean norm, the square root of ``sum_of_squares``."""
    return math.sqrt(sum_of_squares(v))


def distance(a: F32 | F64, b: F32 | F64) -> float:
    """Return the norm of ``a - b``, taken in float64."""
    _checks.array("a", a, np.float32, np.float64)
    _checks.array("b", b, np.float32, np.float64)
    _checks.same_length(a=a, b=b)
    with np.errstate(all="ignore"):
        return norm(np.subtract(a, b, dtype=np.float64))


def linear_digest(q: I64, seed: int, *, first: int = 0) -> int:
    """Return ``sum_j r_j*q_j`` modulo 2**64, r_j the hash of (seed, first + j) made odd.

    Linear: the digest of a sum is the sum of the digests, modulo 2**64. So is that of a vector
    taken in parts, each with the place of its ``first`` element. An odd factor
    loses nothing, so that one element that differs is always seen; of two the factors
    are alike once in 2**31. ``seed`` lies in [0, 2**64); first + n < 2**32.
    """
    _checks.array("q", q, np.int64)
    first = _checks.integer("first", first, 0, 1 << 32)
    return int(active().bind("linear_digest", (q,))(seed32(seed), first))


def _output(out: Any, dtype: Any, **inputs: np.ndarray[Any, Any]) -> Any:
    """Return a fresh result array, or ``out`` once it has been found fit."""
    if out is None:
        return np.empty(next(iter(inputs.values())).size, dtype)
    _checks.array("out", out, dtype, written=True)
    _checks.same_length(out=out, **inputs)
    _checks.apart({"out": out}, inputs)
    return out


def _refuse_off_grid(name: str, index: int, v: F32 | F64) -> None:
    if index >= 0:
        raise ValueError(
            f"{name}[{index}] = {v[index]} is not on the grid, "
            f"whose values are finite and lie inside ±{GRID_LIMIT:g}"
        )
