"""Sums modulo 2**64, compiled by Numba: masked fixed-point values add and subtract exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kellet.kernels._jit import jit

__all__ = ["add_modular", "subtract_modular"]

U64 = NDArray[np.uint64]


@jit
def add_modular(total: U64, part: U64) -> None:
    for i in range(total.size):
        total[i] += part[i]


@jit
def subtract_modular(total: U64, part: U64) -> None:
    for i in range(total.size):
        total[i] -= part[i]
