"""A plan's eval graph in onnxruntime: scores, loss and accuracy at a point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from kellet.sdk.plan.data import check_data, check_features, check_vector
from kellet.sdk.plan.session import GradientSession, address, open_session, run_bound

if TYPE_CHECKING:
    from kellet.sdk.plan.plan import Plan

__all__ = ["Evaluator", "Metrics", "mean_cross_entropy"]

_Floats = np.ndarray[Any, np.dtype[np.float32]]
_BATCH = 64


@dataclass(frozen=True)
class Metrics:
    """Means over ``n`` rows. ``accuracy`` is None where the labels are no classes."""

    loss: float
    accuracy: float | None
    n: int


def mean_cross_entropy(scores: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of -log softmax(scores)[label], in float64.

    scores: [n, classes], labels: int64 [n].
    """
    scores = np.asarray(scores, np.float64)
    top = scores.max(axis=1)
    log_sum = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top
    return float((log_sum - scores[np.arange(len(labels)), labels]).mean())


class Evaluator:
    """Scores of a plan's model. Not for use from two threads at once."""

    def __init__(self, plan: Plan, *, threads: int = 1) -> None:
        self.plan = plan
        self._threads = threads
        self._session = open_session(plan.eval_graph, plan.manifest, threads)
        self._gradients: GradientSession | None = None

    def scores(self, params: _Floats, x: ArrayLike) -> _Floats:
        """Return the model's output for x [n, *input], as float32 [n, ...].

        ``params`` is a flat vector [n_params]. Rows are run in batches, so
        memory does not grow with n beyond the result. Raises ``DataError`` for
        x, ``UsageError`` for a vector that is not the plan's.
        """
        features = check_features(self.plan.manifest.input, x)
        binding = self._session.io_binding()
        for name, value in self.plan.views(check_vector(self.plan.manifest, params)).items():
            binding.bind_input(name, "cpu", 0, np.float32, value.shape, address(value))
        parts = []
        for start in range(0, len(features), _BATCH):
            batch = features[start : start + _BATCH]
            binding.bind_input("batch", "cpu", 0, batch.dtype, batch.shape, address(batch))
            binding.bind_output("scores", "cpu")
            run_bound(self._session, binding)
            parts.append(binding.copy_outputs_to_cpu()[0])
        return np.concatenate(parts)

    def evaluate(self, params: _Floats, x: ArrayLike, y: ArrayLike) -> Metrics:
        """Return the mean loss and the accuracy over (x, y). Raises ``DataError``.

        Cross-entropy is computed here, in float64. A custom loss is that of
        the step graph, so layers that differ in training are in training.
        """
        manifest = self.plan.manifest
        features, labels = check_data(manifest, x, y)
        vector = check_vector(manifest, params)
        accuracy = None
        if manifest.labels.classes is not None or manifest.loss == "cross_entropy":
            scores = self.scores(vector, features)
            accuracy = float((scores.argmax(axis=1) == labels).mean())
        if manifest.loss == "cross_entropy":
            loss = mean_cross_entropy(scores, labels)
        else:
            loss = self._custom_loss(vector, features, labels)
        return Metrics(loss, accuracy, len(features))

    def _custom_loss(self, params: _Floats, x: np.ndarray, y: np.ndarray) -> float:
        if self._gradients is None:
            self._gradients = GradientSession(self.plan, threads=self._threads)
        losses = []
        for start in range(0, len(x), _BATCH):
            self._gradients.params[:] = params  # a step may have moved the buffers
            batch = slice(start, start + _BATCH)
            losses.append(self._gradients.step(x[batch], y[batch]) * len(x[batch]))
        return math.fsum(losses) / len(x)
