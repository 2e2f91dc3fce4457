"""Make a plan's file from graphs that already exist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from kellet.sdk.errors import PlanError
from kellet.sdk.plan import Plan, selftest
from kellet.sdk.plan.bundle import SelfTest, TensorData, write_contents
from kellet.sdk.plan.manifest import FORMAT, InputSpec, LabelSpec, Manifest, layout
from kellet.sdk.plan.onnx_wire import inspect_graph
from kellet.sdk.plan.operators import MIN_ONNXRUNTIME

__all__ = ["Tensor", "write_bundle"]


@dataclass(frozen=True)
class Tensor:
    """One parameter or buffer, with its initial value (float32)."""

    name: str
    value: np.ndarray[Any, np.dtype[Any]]
    role: Literal["train", "buffer", "frozen"] = "train"
    aggregate: Literal["mean", "local"] = "mean"


def write_bundle(
    *,
    name: str,
    step: bytes,
    evaluate: bytes,
    tensors: Sequence[Tensor],
    input: InputSpec,
    labels: LabelSpec,
    loss: Literal["cross_entropy", "custom"],
    example_batch: ArrayLike,
    example_labels: ArrayLike,
    memory: Mapping[int, int] | None = None,
    licence: str = "",
    author: str = "",
    description: str = "",
) -> bytes:
    """Return the file of a plan made of two encoded ONNX models.

    ``step`` maps ``batch``, ``labels`` and the tensors, in the order of the
    flat vector, to ``loss``, ``grad::NAME`` of each train tensor and
    ``buffer::NAME`` of each buffer, in the same order; ``evaluate`` maps
    ``batch`` and the tensors to ``scores``. The examples become the plan's
    self-test. The same arguments give the same bytes on one machine. Raises
    ``PlanError`` where graphs and tensors do not agree, and ``DataError``
    where the examples do not fit.
    """
    placed = layout([(t.name, t.value.shape, t.role, t.aggregate) for t in tensors])
    values = {tensor.name: tensor.value for tensor in tensors}
    if len(values) != len(tensors):
        raise PlanError(
            "two tensors have the same name",
            why="a tensor is found by its name",
            repair="rename one of them",
        )
    initial = np.concatenate([np.asarray(values[t.name], np.float32).ravel() for t in placed])
    manifest = Manifest(
        format=FORMAT,
        name=name,
        input=input,
        labels=labels,
        loss=loss,
        tensors=placed,
        memory=dict(sorted((memory or {}).items())),
        opset=inspect_graph(step).opset,
        min_onnxruntime=MIN_ONNXRUNTIME,
        licence=licence,
        author=author,
        description=description,
    )
    # The self-test is what the plan computes, so a plan without one comes first.
    x, y = np.zeros((1, *input.shape), input.dtype), np.zeros((1, *labels.shape), labels.dtype)
    blank = SelfTest(TensorData.of(x), TensorData.of(y), 0.0, (), (), TensorData.of(x))
    draft = Plan(write_contents(manifest, step, evaluate, initial, blank))
    expected = selftest.record(draft, *draft.check_data(example_batch, example_labels))
    return write_contents(manifest, step, evaluate, initial, expected)
