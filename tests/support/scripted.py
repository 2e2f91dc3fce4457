"""Sessions whose gradients are written down beforehand: training without onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import Int8Rows, aligned
from kellet.sdk.plan.int8_session import Int8Session
from kellet.sdk.plan.manifest import TensorSpec
from kellet.sdk.plan.schemes import FLOAT32, Int8Layout
from kellet.sdk.protocol.vectors import Shapes

__all__ = ["Gradients", "ScriptedFloat", "ScriptedInt8", "session_of"]

F32 = NDArray[np.float32]

# Gives the gradient [n_train] of a step (from 0), at the decoded parameters [n_update].
Gradients = Callable[[int, F32], F32]


class ScriptedFloat:
    """A ``GradientSession`` that is told its gradients; the loss is 1."""

    def __init__(self, tensors: Sequence[TensorSpec], gradients: Gradients) -> None:
        shapes = Shapes.of(tensors)
        self.params = aligned(sum(t.size for t in tensors))
        self.grads = aligned(shapes.n_train)
        self._update = self.params[: shapes.n_update]
        self._gradients = gradients
        self._taken = 0

    def step(self, x: Any, y: Any) -> float:
        self.grads[:] = self._gradients(self._taken, self._update)
        self._taken += 1
        return 1.0


class ScriptedInt8:
    """An ``Int8Session`` that is told its gradients; it loads models as the real one does."""

    load = Int8Session.load
    decoded = Int8Session.decoded

    def __init__(self, tensors: Sequence[TensorSpec], scheme: str, gradients: Gradients) -> None:
        shapes = Shapes.of(tensors)
        n_params = sum(t.size for t in tensors)
        self.plan: Any = SimpleNamespace(
            n_update=shapes.n_update, n_params=n_params, release=lambda: None
        )
        self.scheme = scheme
        self.layout = Int8Layout.of(SimpleNamespace(tensors=tensors), scheme)  # type: ignore[arg-type]
        scales = aligned(self.layout.n_scales)
        scales[:] = 1
        self.weights = Int8Rows(aligned(self.layout.n_weights, np.int8), scales, self.layout.rows)
        self.scratch = aligned(shapes.n_update)
        self.weight_grads = self.scratch[: self.layout.n_weights]
        self.rest = aligned(self.layout.n_rest)
        self.rest_grads = aligned(self.layout.n_rest_train)
        self._gradients = gradients
        self._taken = 0

    def step(self, x: Any, y: Any) -> float:
        gradient = self._gradients(self._taken, self.decoded())
        for held in self.layout.weights:
            self.weight_grads[held.values] = gradient[held.flat]
        for floats in self.layout.rest:
            if floats.tensor.role == "train":
                self.rest_grads[floats.rest] = gradient[floats.flat]
        self._taken += 1
        return 1.0


def session_of(
    tensors: Sequence[TensorSpec], scheme: str, gradients: Gradients
) -> ScriptedFloat | ScriptedInt8:
    """A session of this scheme."""
    if scheme == FLOAT32:
        return ScriptedFloat(tensors, gradients)
    return ScriptedInt8(tensors, scheme, gradients)
