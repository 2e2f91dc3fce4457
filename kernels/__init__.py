"""Arithmetic on flat arrays: local steps, int8 rows, codecs, exact sums, norms, digests.

One contract for every backend (the compiled library, Numba, NumPy): the bits of
``kellet.kernels.reference``. Functions check their arguments and refuse with
TypeError or ValueError before anything is written.
"""

from kellet.kernels._backend import backend, use_backend
from kellet.kernels._threads import set_threads, threads
from kellet.kernels.exact import (
    accumulate,
    add_modular,
    add_scaled,
    add_weighted,
    aligned,
    control_shift,
    derived_delta_c,
    distance,
    from_grid,
    limbs_to_float64,
    linear_digest,
    norm,
    subtract_modular,
    sum_of_squares,
    to_grid,
)
from kellet.kernels.local import (
    StepName,
    advance_rate_sum,
    bind,
    clip_norm,
    prox_momentum_step,
    prox_step,
    scaffold_momentum_step,
    scaffold_step,
    scaffold_step_shift,
    sgd_momentum_step,
    sgd_step,
)
from kellet.kernels.local_rows import (
    prox_step_int8,
    scaffold_step_int8,
    scaffold_step_shift_rows,
    sgd_step_int8,
)
from kellet.kernels.rows import Int8Rows, block_layout, dequantise, quantise, row_layout
from kellet.kernels.sparse import top_k, top_k_feedback

__all__ = [
    "Int8Rows",
    "StepName",
    "accumulate",
    "add_modular",
    "add_scaled",
    "add_weighted",
    "advance_rate_sum",
    "aligned",
    "backend",
    "bind",
    "block_layout",
    "clip_norm",
    "control_shift",
    "dequantise",
    "derived_delta_c",
    "distance",
    "from_grid",
    "limbs_to_float64",
    "linear_digest",
    "norm",
    "prox_momentum_step",
    "prox_step",
    "prox_step_int8",
    "quantise",
    "row_layout",
    "scaffold_momentum_step",
    "scaffold_step",
    "scaffold_step_int8",
    "scaffold_step_shift",
    "scaffold_step_shift_rows",
    "set_threads",
    "sgd_momentum_step",
    "sgd_step",
    "sgd_step_int8",
    "subtract_modular",
    "sum_of_squares",
    "threads",
    "to_grid",
    "top_k",
    "top_k_feedback",
    "use_backend",
]
