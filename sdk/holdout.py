"""A device's own hold-out: samples it never trains on, to judge models by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.controls import FloatVector
from kellet.sdk.errors import DataError
from kellet.sdk.plan import Evaluator, Plan
from kellet.sdk.trainer import Data, Holdout

__all__ = ["Judge", "split_holdout"]

F32 = NDArray[np.float32]


class Judge:
    """Judges models of a plan by held-out samples; None of each where nothing is held out.

    ``evaluator``: gives the plan's, which several judges may share; it is asked for once.
    """

    def __init__(
        self, plan: Plan, held: Data | None, evaluator: Callable[[], Evaluator] | None = None
    ) -> None:
        self._plan = plan
        self._held = held
        self._make = evaluator or plan.evaluator
        self._evaluator: Evaluator | None = None

    def received(self, x: FloatVector) -> Holdout | None:
        """The model ``x`` float32 [n_update], as it came."""
        return self.whole(self._plan.completed(x[:])) if self._held is not None else None

    def whole(self, model: F32) -> Holdout | None:
        """A model with its frozen tensors, float32 [n_params], where it lies."""
        if self._held is None:
            return None
        if self._evaluator is None:
            self._evaluator = self._make()
        metrics = self._evaluator.evaluate(model, self._held.x, self._held.y)
        return Holdout(metrics.n, metrics.loss, metrics.accuracy)


def split_holdout(data: Data, fraction: float, device: str) -> tuple[Data, Data | None]:
    """(training samples, hold-out) with ``floor(fraction * n)`` samples held out.

    The choice depends on the device's name and n alone, so that no sample moves
    between the two over restarts. ``DataError`` where the fraction leaves either empty.
    """
    if fraction == 0:
        return data, None
    held = int(fraction * len(data))
    if not 0 < held < len(data):
        raise DataError(
            f"a hold-out of {fraction:g} of {len(data)} samples",
            why="both the hold-out and the training samples must keep one at least",
            repair="give more data, or holdout=0",
        )
    key = int.from_bytes(hashlib.sha256(f"holdout/{device}".encode()).digest()[:16], "little")
    order = np.random.Generator(np.random.Philox(key=key)).permutation(len(data))
    out, rest = np.sort(order[:held]), np.sort(order[held:])
    return Data(data.x[rest], data.y[rest]), Data(data.x[out], data.y[out])
