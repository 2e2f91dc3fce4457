"""Arithmetic on flat arrays: local steps, exact sums, norms, digests.

One contract for every backend (the compiled library, Numba, NumPy): the bits of
``kellet.kernels.reference``. Functions check their arguments and refuse with
TypeError or ValueError before anything is written.
"""

from kellet.kernels._backend import backend, use_backend
from kellet.kernels.exact import (
    add_scaled,
    aligned,
    control_shift,
    derived_delta_c,
    distance,
    from_grid,
    limbs_to_float64,
    norm,
    signed_digest,
    sum_of_squares,
    to_grid,
)
from kellet.kernels.local import (
    StepName,
    bind,
    prox_step,
    scaffold_step,
    scaffold_step_shift,
    sgd_step,
)

__all__ = [
    "StepName",
    "add_scaled",
    "aligned",
    "backend",
    "bind",
    "control_shift",
    "derived_delta_c",
    "distance",
    "from_grid",
    "limbs_to_float64",
    "norm",
    "prox_step",
    "scaffold_step",
    "scaffold_step_shift",
    "sgd_step",
    "signed_digest",
    "sum_of_squares",
    "to_grid",
    "use_backend",
]
