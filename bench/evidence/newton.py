"""Logistic regression on one machine, solved: what a federated one is held against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Logistic", "logistic_regression"]

F64 = NDArray[np.float64]
_RIDGE = 1.0  # 0.5 * ||w||^2 beside the summed loss, as scikit-learn has it by default
_ENOUGH = 1e-9


@dataclass(frozen=True)
class Logistic:
    """Log odds ``x @ w + b``."""

    w: F64
    b: float

    def scores(self, x: NDArray[np.floating]) -> F64:
        """Return the log odds, float64 [n]."""
        out: F64 = x.astype(np.float64) @ self.w + self.b
        return out


def logistic_regression(x: NDArray[np.floating], y: NDArray[np.integer]) -> Logistic:
    """Return what Newton's method comes to; x [n, k], y [n], 0 or 1. The bias has no penalty."""
    design = np.column_stack([x.astype(np.float64), np.ones(len(x))])
    ridge = np.full(design.shape[1], _RIDGE)
    ridge[-1] = 0
    found = np.zeros(design.shape[1])
    while True:
        odds = 1 / (1 + np.exp(-(design @ found)))
        gradient = design.T @ (odds - y) + ridge * found
        curvature = (design.T * (odds * (1 - odds))) @ design + np.diag(ridge)
        step = np.linalg.solve(curvature, gradient)
        found -= step
        if np.abs(step).max() < _ENOUGH:
            return Logistic(found[:-1], float(found[-1]))
