"""A trained model as a plain ONNX file that anyone can run.

The eval graph already is ONNX; all it lacks is the values of its parameters.
Protobuf messages concatenate: the fields of the second are merged into the
first. So appending one small hand-encoded model that holds nothing but
initializers gives a whole model, without the ``onnx`` package. The parameters
stay listed as inputs with a default, as ONNX allows since IR version 4, so a
caller may still replace them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kellet.sdk.errors import PlanError
from kellet.sdk.plan.onnx_wire import field

if TYPE_CHECKING:
    from kellet.sdk.plan.plan import Plan

__all__ = ["export_model"]

# Field numbers from onnx.proto3.
_MODEL_GRAPH, _MODEL_METADATA, _GRAPH_INITIALIZER = 7, 14, 5
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_FLOAT = 1


def export_model(plan: Plan, params: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """Return an ONNX inference model of ``plan`` with ``params`` [n_params] in it.

    Its one required input is ``batch`` [b, *input], its output ``scores``. The
    metadata name the plan (``kellet.plan``) and the classes (``kellet.labels``,
    one a line). Raises ``PlanError`` for a vector that is not the plan's or
    not finite.
    """
    vector = np.asarray(params)
    if vector.dtype != np.float32 or vector.shape != (plan.n_params,):
        raise PlanError(
            f"the parameters are {vector.dtype} {list(vector.shape)}",
            why=f"the plan's are float32 [{plan.n_params}]",
            repair="pass the flat vector of this plan",
        )
    if not np.isfinite(vector).all():
        raise PlanError(
            "the parameters are not finite",
            why="a model with NaN or infinity answers nothing",
            repair="train with a smaller rate",
        )
    initializers = b"".join(
        field(_GRAPH_INITIALIZER, _tensor(name, value))
        for name, value in plan.views(vector).items()
    )
    metadata = _metadata("kellet.plan", plan.hex_id)
    if plan.manifest.labels.names:
        metadata += _metadata("kellet.labels", "\n".join(plan.manifest.labels.names))
    return b"".join([plan.eval_graph, field(_MODEL_GRAPH, initializers), metadata])


def _tensor(name: str, value: np.ndarray) -> bytes:
    return b"".join(
        [
            *(field(_TENSOR_DIMS, size) for size in value.shape),
            field(_TENSOR_TYPE, _FLOAT),
            field(_TENSOR_NAME, name.encode()),
            field(_TENSOR_RAW, value.astype("<f4").tobytes()),
        ]
    )


def _metadata(key: str, value: str) -> bytes:
    return field(_MODEL_METADATA, field(1, key.encode()) + field(2, value.encode()))
