"""Every kernel in NumPy: the specification, and what serves without a compiled library.

The other backends give these bits, or both sides NaN. Sums of floats are
written out in their order, so that no library's summation decides it.
Signatures are those of ``table.KERNELS``; arrays of length n are [n].
"""

# ruff: noqa: PLR0917 - a kernel takes its arguments by position, in C too

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kellet.kernels.reference_rows import (
    dequantise,
    dequantise_add,
    hashed,
    int8_prox_step,
    int8_prox_step_full,
    int8_scaffold_step,
    int8_scaffold_step_full,
    int8_sgd_step,
    int8_sgd_step_full,
    quantise,
    quantise_stochastic,
    scaffold_step_shift_rows,
    scaffold_step_shift_rows_full,
)
from kellet.kernels.reference_steps import (
    prox_momentum_step,
    prox_step,
    prox_step_full,
    prox_step_implicit,
    prox_step_implicit_full,
    scaffold_momentum_step,
    scaffold_step,
    scaffold_step_full,
    scaffold_step_shift,
    scaffold_step_shift_full,
    scale,
    sgd_momentum_step,
    sgd_step,
    sgd_step_full,
)
from kellet.kernels.table import GRID_BITS, GRID_LIMIT

__all__ = [
    "accumulate",
    "accumulate_int8",
    "add_modular",
    "add_scaled",
    "add_weighted",
    "control_shift",
    "dequantise",
    "dequantise_add",
    "derived_delta_c",
    "from_grid",
    "int8_prox_step",
    "int8_prox_step_full",
    "int8_scaffold_step",
    "int8_scaffold_step_full",
    "int8_sgd_step",
    "int8_sgd_step_full",
    "limbs_to_float64",
    "linear_digest",
    "off_grid",
    "prox_momentum_step",
    "prox_step",
    "prox_step_full",
    "prox_step_implicit",
    "prox_step_implicit_full",
    "quantise",
    "quantise_stochastic",
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
    "squares_of_blocks",
    "subtract_modular",
    "sum_of_squares",
    "to_grid",
    "top_k",
]

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
U32 = NDArray[np.uint32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

LANES = 8
BLOCK = 1024


def off_grid(v: F32 | F64) -> int:
    """Index of the first value that the grid cannot hold (NaN too), or -1."""
    bad = np.flatnonzero(~(np.abs(v) < GRID_LIMIT))
    return int(bad[0]) if bad.size else -1


def to_grid(q: I64, v: F32 | F64) -> None:
    """``q = rint(v * 2**48)``, ties to even. The product is exact: it moves the exponent alone."""
    q[:] = np.rint(v.astype(np.float64) * 2.0**GRID_BITS)


def from_grid(v: F64, q: I64) -> None:
    """``v = float64(q) * 2**-48``, rounded once, in the conversion."""
    v[:] = q.astype(np.float64) * 2.0**-GRID_BITS


def add_scaled(lo: U64, hi: I64, q: I64, weight: np.int64) -> None:
    """``hi*2**64 + lo += q*weight``, modulo 2**128.

    q is cut into halves of 32 bits so that both products fit 64 bits; the sum
    of the shifted upper product and the lower one is carried by hand.
    """
    upper = (q >> 32) * weight
    lower = (q & 0xFFFFFFFF) * weight
    product_lo = (upper << 32).view(np.uint64) + lower.view(np.uint64)
    carry = product_lo < lower.view(np.uint64)
    product_hi = (upper >> 32) + (lower >> 63) + carry
    lo += product_lo
    hi += product_hi + (lo < product_lo)


def accumulate(lo: U64, hi: I64, v: F32, weight: np.int64) -> None:
    """``to_grid`` and ``add_scaled`` in one pass."""
    q = np.empty(v.size, np.int64)
    to_grid(q, v)
    add_scaled(lo, hi, q, weight)


def accumulate_int8(
    lo: U64, hi: I64, q: I8, scales: F32, layout: I64, weight: np.int64, segments: np.int64
) -> None:
    """``dequantise`` and ``accumulate`` in one pass."""
    v = np.empty(q.size, np.float32)
    dequantise(v, q, scales, layout, segments)
    accumulate(lo, hi, v, weight)


def add_weighted(total: F64, v: F32 | F64, weight: np.float64) -> None:
    """``total += weight*v`` in float64."""
    total += weight * v.astype(np.float64)


def add_modular(total: U64, part: U64) -> None:
    """``total += part`` modulo 2**64."""
    total += part


def subtract_modular(total: U64, part: U64) -> None:
    """``total -= part`` modulo 2**64."""
    total -= part


def top_k(index: U32, value: F32, counts: I64, v: F32, n: np.int64) -> None:
    """The k largest ``|v|`` by their integer bits, of equals the first, in the vector's order.

    ``counts`` is room for the histograms of the other backends, zero before and after.
    """
    bits = v.view(np.uint32) & np.uint32(0x7FFFFFFF)
    chosen = np.sort(np.argsort(~bits, kind="stable")[: index.size])
    index[:] = chosen
    value[:] = v[chosen]


def limbs_to_float64(out: F64, lo: U64, hi: I64) -> None:
    """The float64 nearest to ``hi*2**64 + lo``, ties to even."""
    signed = lo.view(np.int64)
    out[:] = signed
    for i in np.flatnonzero(hi != signed >> 63):  # more than 64 bits: Python's own conversion
        out[i] = float((int(hi[i]) << 64) + int(lo[i]))


def derived_delta_c(
    q: I64, c_a: F32, delta_y: F32, rate_sum: np.float64, damping: np.float64
) -> int:
    """``q = rint(damping*(-c_a - delta_y/rate_sum) * 2**48)`` in float64; result of ``off_grid``.

    What the grid cannot hold becomes 0.
    """
    v = damping * (-c_a.astype(np.float64) - delta_y.astype(np.float64) / rate_sum)
    bad = off_grid(v)
    if bad >= 0:
        v[~(np.abs(v) < GRID_LIMIT)] = 0.0
    to_grid(q, v)
    return bad


def control_shift(d: F32, c: F32, q_ci: I64) -> None:
    """``d = float32(float64(c) - float64(q_ci) * 2**-48)``."""
    d[:] = c.astype(np.float64) - q_ci.astype(np.float64) * 2.0**-GRID_BITS


def sum_of_squares(v: F32 | F64) -> float:
    """Sum of float64 squares in this order.

    Whole rows of 8 go to 8 lanes, which start anew every 1024 elements; the
    lanes of a block are added as ``((0+4)+(2+6)) + ((1+5)+(3+7))``; blocks are
    added in order, then the last ``n % 8`` elements one by one.
    """
    squares = v.astype(np.float64)
    squares *= squares
    whole = v.size - v.size % LANES
    # The last block is filled with zeros: adding +0 to a sum of squares changes no bit.
    blocks = np.zeros((-(-whole // BLOCK), BLOCK // LANES, LANES))
    blocks.reshape(-1)[:whole] = squares[:whole]
    lanes = np.zeros((len(blocks), LANES))
    for row in range(BLOCK // LANES):
        lanes += blocks[:, row]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    total = 0.0
    for part in lanes[:, 0].tolist():
        total += part
    for part in squares[whole:].tolist():
        total += part
    return total


def squares_of_blocks(sums: F64, v: F32) -> None:
    """The sum of squares of each whole block of 1024, as ``sum_of_squares`` adds it."""
    for i in range(sums.size):
        sums[i] = sum_of_squares(v[i * BLOCK : (i + 1) * BLOCK])


def linear_digest(q: I64, seed: np.uint32, first: np.uint32) -> int:
    """``sum_j r_j*q_j`` modulo 2**64, r_j the hash of (seed, first + j) with its last bit set."""
    h = hashed(np.arange(q.size, dtype=np.uint32) + np.uint32(first), seed)
    terms = q.view(np.uint64) * (h | np.uint32(1)).astype(np.uint64)
    # Addition modulo 2**64 has no order, so a library's sum is safe here.
    return int(np.add.reduce(terms, dtype=np.uint64))
