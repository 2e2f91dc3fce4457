"""The kernels by name: what each takes and gives, the same in every backend.

A kernel is called as ``f(*arrays, *scalars)``. All arrays of one call are
contiguous, one-dimensional and of the same length; the written ones come
first. Kernels compute and never check: the public functions have done so.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["GRID_BITS", "GRID_LIMIT", "KERNELS", "Kernel"]

GRID_BITS = 48  # fraction bits of the exact sums
GRID_LIMIT = 2.0**14  # a value must lie strictly inside


class Kernel(NamedTuple):
    """One kernel's signature. Element types are NumPy's: f4, f8, i8, u4, u8."""

    function: str  # its name in the module that defines it
    arrays: tuple[str, ...]
    writes: int  # how many of the arrays, from the first, are written
    scalars: tuple[str, ...] = ()
    result: str = ""


KERNELS = {
    "sgd_step": Kernel("sgd_step", ("f4", "f4"), 1, ("f4",)),
    "prox_step": Kernel("prox_step", ("f4", "f4", "f4"), 1, ("f4", "f4")),
    "prox_step_implicit": Kernel("prox_step_implicit", ("f4", "f4", "f4"), 1, ("f4", "f4")),
    "scaffold_step": Kernel("scaffold_step", ("f4", "f4", "f4", "f4"), 1, ("f4",)),
    "scaffold_step_shift": Kernel("scaffold_step_shift", ("f4", "f4", "f4"), 1, ("f4",)),
    "off_grid_f32": Kernel("off_grid", ("f4",), 0, (), "i8"),
    "off_grid_f64": Kernel("off_grid", ("f8",), 0, (), "i8"),
    "to_grid_f32": Kernel("to_grid", ("i8", "f4"), 1),
    "to_grid_f64": Kernel("to_grid", ("i8", "f8"), 1),
    "from_grid": Kernel("from_grid", ("f8", "i8"), 1),
    "add_scaled": Kernel("add_scaled", ("u8", "i8", "i8"), 2, ("i8",)),
    "limbs_to_float64": Kernel("limbs_to_float64", ("f8", "u8", "i8"), 1),
    "derived_delta_c": Kernel("derived_delta_c", ("i8", "f4", "f4"), 1, ("f8",), "i8"),
    "control_shift": Kernel("control_shift", ("f4", "f4", "i8"), 1),
    "sum_of_squares_f32": Kernel("sum_of_squares", ("f4",), 0, (), "f8"),
    "sum_of_squares_f64": Kernel("sum_of_squares", ("f8",), 0, (), "f8"),
    "signed_digest": Kernel("signed_digest", ("i8",), 0, ("u4",), "u8"),
}
