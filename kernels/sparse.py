"""The largest elements of a vector, and what remains of it: top-k with error feedback."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import _checks
from kellet.kernels._backend import active

__all__ = ["top_k", "top_k_feedback"]

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]

_COUNTS = 2048
_MAX_SIZE = 1 << 32


def top_k(v: F32, k: int) -> tuple[U32, F32]:
    """Return the indices [k], ascending, and the values [k] of the k largest ``|v|``.

    Of equals the first are taken. ``1 <= k <= n < 2**32``; ``v`` finite.
    """
    _checks.array("v", v, np.float32)
    if v.size >= _MAX_SIZE:
        raise ValueError(f"v must have fewer than 2**32 elements, not {v.size}")
    k = _checks.integer("k", k, 1, v.size + 1)
    _checks.finite("v", v)
    index, value = np.empty(k, np.uint32), np.empty(k, np.float32)
    active().bind("top_k", (index, value, np.zeros(_COUNTS, np.int64), v))(v.size)
    return index, value


def top_k_feedback(v: F32, residual: F32, k: int) -> tuple[U32, F32]:
    """Add v to the residual in place, take the k largest out of it, and return them as ``top_k``.

    What is not sent now is sent later (Stich et al. 2018, algorithm 1). Keep
    the residual of the last receipt until the next one: pass a copy. Never for
    delta_c, nor for a delta_y from which delta_c is derived, where feedback diverges.
    """
    _checks.array("v", v, np.float32)
    _checks.array("residual", residual, np.float32, written=True)
    _checks.same_length(v=v, residual=residual)
    _checks.apart({"residual": residual}, {"v": v})
    with np.errstate(over="ignore", invalid="ignore"):
        together = residual + v
    index, value = top_k(together, k)
    together[index] = 0
    residual[:] = together
    return index, value
