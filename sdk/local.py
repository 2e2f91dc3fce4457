"""A device's y during one round, in float32 or with its weights as int8 rows.

The loop (``kellet.sdk.trainer``) does not care which. ``begin`` puts the received
model into the session, takes what it needs, and holds on to no more: whoever
calls it may let go of the model's bytes where the weights are int8.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import Int8Rows
from kellet.sdk.controls import FloatVector
from kellet.sdk.plan.schemes import Int8Layout

__all__ = [
    "Draw",
    "FloatSession",
    "Int8WeightSession",
    "LocalModel",
    "TrainingFailed",
    "round_seed",
]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

Draw = Callable[[str], int]


class TrainingFailed(Exception):
    """The round's training gave nothing that may be sent; the text says why."""


class FloatSession(Protocol):
    """What training needs of a plan: ``kellet.sdk.plan.GradientSession``."""

    params: F32
    grads: F32

    def step(self, x: F32, y: I64) -> float: ...


@runtime_checkable
class Int8WeightSession(Protocol):
    """The same with int8 weights: ``kellet.sdk.plan.Int8Session``."""

    scheme: str
    layout: Int8Layout
    weights: Int8Rows
    weight_grads: F32
    rest: F32
    rest_grads: F32
    scratch: F32

    def load(self, x: FloatVector, *, seed: int) -> None: ...

    def step(self, x: F32, y: I64) -> float: ...


class LocalModel(Protocol):
    """A device's y. Vectors are in the plan's order, whatever it is held in."""

    scheme: str
    borrows: bool
    """Whether ``delta_y`` lies in the session's memory, until its next step."""
    start: F32 | None
    """The model that it began as, float32 [n_update]; None where int8 rows hold it."""

    def gradient(self, x: F32, y: I64) -> float:
        """The loss of a batch at y; its gradient is kept for ``step``."""
        ...

    def gradients(self) -> Iterator[tuple[slice, F32]]:
        """The gradient's parts, and where they lie in [n_train]."""
        ...

    def look_ahead(self, rate: float, x: F32, y: I64) -> float:
        """Put the gradient at y - rate * gradient, on another batch, in its place; its loss.

        ``TrainingFailed`` where y is held in int8.
        """
        ...

    def step(self, rate: float) -> None:
        """Walk against the gradient. ``TrainingFailed`` where int8 rows cannot."""
        ...

    def restore_buffers(self) -> None:
        """Put back the buffers of the round's start."""
        ...

    def distance(self) -> float:
        """||y - y_0|| over the trained parameters."""
        ...

    def delta_y(self, rate_sum: float) -> F32:
        """y - y_0, float32 [n_update].

        Without the known error of a shift that was held in int8: ``rate_sum*(Q(d) - d)`` is
        added. What a device keeps to itself is zero.
        """
        ...

    def remembered(self, rate_sum: float) -> F32 | None:
        """The algorithm's memory after the last step, float32 [n_train]; None without one."""
        ...

    def kept(self) -> F32 | None:
        """What a device keeps to itself, one part after the other."""
        ...


def round_seed(seed: int, device: str, round_: int, purpose: str) -> int:
    """64 bits for one purpose of one device in one round; ``purpose`` keeps draws apart."""
    text = f"{seed}/{device}/{round_}/{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def place(vector: F32, parts: Sequence[slice], values: F32 | None) -> None:
    """Write what a device kept, one part after the other."""
    if values is None:
        return
    start = 0
    for part in parts:
        size = part.stop - part.start
        vector[part] = values[start : start + size]
        start += size
