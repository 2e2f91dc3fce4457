"""The kernels by name: what each takes and gives, the same in every backend.

A kernel is called as ``f(*arrays, *scalars)``. All arrays of one call are
contiguous and one-dimensional; the written ones come first. Their common length
is n, but for those kernels that say another in ``lengths``: a C function is
given the length of its first array alone, so that a kernel asks no other for
its size. Kernels compute and never check: the public functions have done so.

Int8 rows are ``q`` [n] with a scale a row, [rows]; ``layout`` is pairs of
(rows, their length), one a segment, which cover both. ``room`` is for the moves of
one row, or of short rows together, [max(longest row, ROOM)]; ``first`` is what the
position of q[0] counts as in the hash.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "GRID_BITS",
    "GRID_LIMIT",
    "KERNELS",
    "LARGEST_SCALE",
    "REFIT",
    "ROOM",
    "SMALLEST_SCALE",
    "Kernel",
]

GRID_BITS = 48  # fraction bits of the exact sums
GRID_LIMIT = 2.0**14  # a value must lie strictly inside

# Scales of int8 rows. Between the bounds no quotient of two overflows.
SMALLEST_SCALE = 2.0**-40
LARGEST_SCALE = 2.0**80
ROOM = 1024  # the least room of the steps on int8 rows, in bytes
REFIT = 1.08 / 127  # a refitted row's largest magnitude becomes 127 less a reserve of 8 %


class Kernel(NamedTuple):
    """One kernel's signature. Element types are NumPy's: f4, f8, i8, u4, u8."""

    function: str  # its name in the module that defines it
    arrays: tuple[str, ...]
    writes: int  # how many of the arrays, from the first, are written
    scalars: tuple[str, ...] = ()
    result: str = ""
    lengths: tuple[str, ...] = ()  # of the arrays, where they differ
    wide: bool = False  # whether AVX-512's full registers pay


KERNELS = {
    "sgd_step": Kernel("sgd_step", ("f4",) * 2, 1, ("f4",)),
    "prox_step": Kernel("prox_step", ("f4",) * 3, 1, ("f4",) * 2),
    "prox_step_implicit": Kernel("prox_step_implicit", ("f4",) * 3, 1, ("f4",) * 2),
    "scaffold_step": Kernel("scaffold_step", ("f4",) * 4, 1, ("f4",)),
    "scaffold_step_shift": Kernel("scaffold_step_shift", ("f4",) * 3, 1, ("f4",)),
    "sgd_step_full": Kernel("sgd_step_full", ("f4",) * 2, 1, ("f4",) * 3),
    "prox_step_full": Kernel("prox_step_full", ("f4",) * 3, 1, ("f4",) * 4),
    "prox_step_implicit_full": Kernel("prox_step_implicit_full", ("f4",) * 3, 1, ("f4",) * 4),
    "scaffold_step_full": Kernel("scaffold_step_full", ("f4",) * 4, 1, ("f4",) * 3),
    "scaffold_step_shift_full": Kernel("scaffold_step_shift_full", ("f4",) * 3, 1, ("f4",) * 3),
    "sgd_momentum_step": Kernel("sgd_momentum_step", ("f4",) * 3, 2, ("f4",) * 4),
    "prox_momentum_step": Kernel("prox_momentum_step", ("f4",) * 4, 2, ("f4",) * 5),
    "scaffold_momentum_step": Kernel("scaffold_momentum_step", ("f4",) * 4, 2, ("f4",) * 4),
    "scale": Kernel("scale", ("f4",), 1, ("f4",)),
    "int8_sgd_step": Kernel(
        "int8_sgd_step",
        ("i1", "f4", "i1", "f4", "i8"),
        3,
        ("f4", "u4", "u4", "i8"),
        "i8",
        ("n", "rows", "room", "n", "2*segments"),
        wide=True,
    ),
    "int8_prox_step": Kernel(
        "int8_prox_step",
        ("i1", "f4", "i1", "f4", "i1", "f4", "i8"),
        3,
        ("f4", "f4", "u4", "u4", "i8"),
        "i8",
        ("n", "rows", "room", "n", "n", "rows", "2*segments"),
        wide=True,
    ),
    "int8_scaffold_step": Kernel(
        "int8_scaffold_step",
        ("i1", "f4", "i1", "f4", "i1", "f4", "i8"),
        3,
        ("f4", "u4", "u4", "i8"),
        "i8",
        ("n", "rows", "room", "n", "n", "rows", "2*segments"),
        wide=True,
    ),
    "int8_sgd_step_full": Kernel(
        "int8_sgd_step_full",
        ("i1", "f4", "i1", "f4", "i8"),
        3,
        ("f4", "f4", "f4", "u4", "u4", "i8"),
        "i8",
        ("n", "rows", "room", "n", "2*segments"),
    ),
    "int8_prox_step_full": Kernel(
        "int8_prox_step_full",
        ("i1", "f4", "i1", "f4", "i1", "f4", "i8"),
        3,
        ("f4", "f4", "f4", "f4", "u4", "u4", "i8"),
        "i8",
        ("n", "rows", "room", "n", "n", "rows", "2*segments"),
    ),
    "int8_scaffold_step_full": Kernel(
        "int8_scaffold_step_full",
        ("i1", "f4", "i1", "f4", "i1", "f4", "i8"),
        3,
        ("f4", "f4", "f4", "u4", "u4", "i8"),
        "i8",
        ("n", "rows", "room", "n", "n", "rows", "2*segments"),
    ),
    "scaffold_step_shift_rows": Kernel(
        "scaffold_step_shift_rows",
        ("f4", "f4", "i1", "f4", "i8"),
        1,
        ("f4", "i8"),
        lengths=("n", "n", "n", "rows", "2*segments"),
    ),
    "scaffold_step_shift_rows_full": Kernel(
        "scaffold_step_shift_rows_full",
        ("f4", "f4", "i1", "f4", "i8"),
        1,
        ("f4", "f4", "f4", "i8"),
        lengths=("n", "n", "n", "rows", "2*segments"),
    ),
    "off_grid_f32": Kernel("off_grid", ("f4",), 0, (), "i8"),
    "off_grid_f64": Kernel("off_grid", ("f8",), 0, (), "i8"),
    "to_grid_f32": Kernel("to_grid", ("i8", "f4"), 1),
    "to_grid_f64": Kernel("to_grid", ("i8", "f8"), 1),
    "from_grid": Kernel("from_grid", ("f8", "i8"), 1),
    "add_scaled": Kernel("add_scaled", ("u8", "i8", "i8"), 2, ("i8",)),
    "accumulate": Kernel("accumulate", ("u8", "i8", "f4"), 2, ("i8",)),
    "accumulate_int8": Kernel(
        "accumulate_int8",
        ("u8", "i8", "i1", "f4", "i8"),
        2,
        ("i8", "i8"),
        lengths=("n", "n", "n", "rows", "2*segments"),
    ),
    "add_weighted_f32": Kernel("add_weighted", ("f8", "f4"), 1, ("f8",)),
    "add_weighted_f64": Kernel("add_weighted", ("f8", "f8"), 1, ("f8",)),
    "add_modular": Kernel("add_modular", ("u8", "u8"), 1),
    "subtract_modular": Kernel("subtract_modular", ("u8", "u8"), 1),
    "quantise": Kernel(
        "quantise",
        ("i1", "f4", "f4", "i8"),
        2,
        ("f4", "i8"),
        "i8",
        ("n", "rows", "n", "2*segments"),
    ),
    "quantise_stochastic": Kernel(
        "quantise_stochastic",
        ("i1", "f4", "f4", "i8"),
        2,
        ("f4", "u4", "i8"),
        "i8",
        ("n", "rows", "n", "2*segments"),
    ),
    "dequantise": Kernel(
        "dequantise",
        ("f4", "i1", "f4", "i8"),
        1,
        ("i8",),
        lengths=("n", "n", "rows", "2*segments"),
    ),
    "dequantise_add": Kernel(
        "dequantise_add",
        ("f8", "i1", "f4", "i8"),
        1,
        ("f8", "i8"),
        lengths=("n", "n", "rows", "2*segments"),
    ),
    "top_k": Kernel(
        "top_k",
        ("u4", "f4", "i8", "f4"),
        3,
        ("i8",),
        lengths=("k", "k", "2048", "n"),
    ),
    "limbs_to_float64": Kernel("limbs_to_float64", ("f8", "u8", "i8"), 1),
    "derived_delta_c": Kernel("derived_delta_c", ("i8", "f4", "f4"), 1, ("f8", "f8"), "i8"),
    "control_shift": Kernel("control_shift", ("f4", "f4", "i8"), 1),
    "sum_of_squares_f32": Kernel("sum_of_squares", ("f4",), 0, (), "f8"),
    "sum_of_squares_f64": Kernel("sum_of_squares", ("f8",), 0, (), "f8"),
    "squares_of_blocks": Kernel("squares_of_blocks", ("f8", "f4"), 1, lengths=("n", "1024*n")),
    "linear_digest": Kernel("linear_digest", ("i8",), 0, ("u4", "u4"), "u8"),
}
