"""A stand-in for gradients: cheap, and the same everywhere. All the rest of training is real."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.plan import Plan

__all__ = ["StandIn"]

F32 = NDArray[np.float32]


class StandIn:
    """A gradient session whose loss is half the squared distance to a centre.

    The centre of coordinate j is the batch's mean plus a constant of its own, so that the
    devices pull apart, and in directions that no sum of signs cancels.
    """

    def __init__(self, plan: Plan) -> None:
        self.params: F32 = np.zeros(plan.n_params, np.float32)
        self.grads: F32 = np.zeros(plan.n_train, np.float32)
        self._offset = np.float32([5 * j * j % 17 / 16 for j in range(plan.n_train)])

    def step(self, x: F32, y: NDArray[np.int64]) -> float:
        centre = np.float32(round(float(x.mean()) * 8) / 8)
        np.subtract(self.params[: len(self.grads)], self._offset + centre, out=self.grads)
        return float(0.5 * np.dot(self.grads, self.grads))
