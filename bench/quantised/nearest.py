"""The control: int8 steps that round to the nearest, and so lose every step below half a unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, FedProx, Int8Step, Int8Work

__all__ = ["nearest_steps"]

F32 = NDArray[np.float32]
# A row keeps its scale while its largest weight lies in this range of units, as in the kernels.
_LOW, _HIGH, _HEADROOM = 57, 127, 1.08
_LARGEST_SCALE = 2.0**80


def nearest_steps(algorithm: FedAvg, work: Int8Work) -> Int8Step:
    """The algorithm's step of int8 rows as the kernels take it, but for the rounding.

    Scales are kept and refitted as theirs are, so that rounding is all that differs; and a row
    whose scale would leave their range is counted, too, and stays.
    """
    mu = algorithm.mu if isinstance(algorithm, FedProx) else 0.0
    lengths = np.concatenate([np.full(rows, n) for rows, n in work.y.layout.reshape(-1, 2)])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    shift = kernels.dequantise(work.d) if work.d is not None else None
    anchor = kernels.dequantise(work.x)

    def step(rate: float, _index: int) -> int:
        gradient = work.g
        if mu:
            gradient = gradient + np.float32(mu) * (kernels.dequantise(work.y) - anchor)
        if shift is not None:
            gradient = gradient + shift
        scales = np.repeat(work.y.scales, lengths)
        v = work.y.values - np.float32(rate) / scales * gradient
        top = np.maximum.reduceat(np.abs(v), starts)
        refit = ((top < _LOW) | (top > _HIGH)) & (top > 0)
        grown = np.where(refit, np.float32(_HEADROOM / _HIGH) * top, np.float32(1))
        fits = work.y.scales * grown <= _LARGEST_SCALE  # False for what is not finite
        work.y.scales[fits] = (work.y.scales * grown)[fits]
        moved = np.repeat(fits, lengths)
        work.y.values[moved] = np.rint(v / np.repeat(grown, lengths))[moved].astype(np.int8)
        return int(np.count_nonzero(~fits))

    return step
