"""A trained model as a plain ONNX file that anyone can run.

The eval graph already is ONNX; its parameters are inputs. Here they leave the
list of inputs and become initializers: fields of the encoded graph are copied
one by one, so the ``onnx`` package is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kellet.sdk.errors import PlanError
from kellet.sdk.plan.data import check_vector
from kellet.sdk.plan.onnx_wire import field, fields

if TYPE_CHECKING:
    from kellet.sdk.plan.plan import Plan

__all__ = ["export_model"]

# Field numbers from onnx.proto3.
_MODEL_GRAPH, _MODEL_METADATA = 7, 14
_GRAPH_INITIALIZER, _GRAPH_INPUT, _INPUT_NAME = 5, 11, 1
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_FLOAT = 1


def export_model(plan: Plan, params: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """Return an ONNX inference model of ``plan`` with ``params`` [n_params] in it.

    Its one input is ``batch`` [b, *input], its output ``scores``. The
    metadata name the plan (``kellet.plan``) and the classes (``kellet.labels``,
    one a line). Raises ``UsageError`` for a vector that is not the plan's,
    ``PlanError`` for one that is not finite.
    """
    vector = check_vector(plan.manifest, params)
    if not np.isfinite(vector).all():
        raise PlanError(
            "the parameters are not finite",
            why="a model with NaN or infinity answers nothing",
            repair="train with a smaller rate",
        )
    model = b"".join(
        field(number, _with_values(message, plan.views(vector)))
        if number == _MODEL_GRAPH and isinstance(message, memoryview)
        else field(number, message)
        for number, message in fields(plan.eval_graph)
    )
    model += _metadata("kellet.plan", plan.hex_id)
    if plan.manifest.labels.names:
        model += _metadata("kellet.labels", "\n".join(plan.manifest.labels.names))
    return model


def _with_values(graph: memoryview, values: Mapping[str, np.ndarray]) -> bytes:
    kept = [
        field(number, message)
        for number, message in fields(graph)
        if number != _GRAPH_INPUT or _name(message) not in values
    ]
    given = [field(_GRAPH_INITIALIZER, _tensor(name, value)) for name, value in values.items()]
    return b"".join(kept + given)


def _name(value_info: int | memoryview) -> str:
    assert isinstance(value_info, memoryview)  # the plan was checked when it was opened
    name = dict(fields(value_info))[_INPUT_NAME]
    assert isinstance(name, memoryview)
    return bytes(name).decode()


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
