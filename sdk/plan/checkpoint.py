"""A trained model as a plain ONNX file that anyone can run.

The eval graph already is ONNX; its parameters are inputs. Here they leave the
list of inputs and become initializers: fields of the encoded graph are copied
one by one, so the ``onnx`` package is not needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kellet.sdk.errors import PlanError
from kellet.sdk.plan.data import check_vector
from kellet.sdk.plan.onnx_wire import field, field_head, fields

if TYPE_CHECKING:
    from kellet.sdk.plan.plan import Plan

__all__ = ["export_model"]

# Field numbers from onnx.proto3.
_MODEL_GRAPH, _MODEL_METADATA = 7, 14
_GRAPH_INITIALIZER, _GRAPH_INPUT, _INPUT_NAME = 5, 11, 1
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_FLOAT = 1

_Piece = bytes | memoryview


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
    return b"".join(_pieces(plan, vector))


def _pieces(plan: Plan, vector: np.ndarray[Any, np.dtype[np.float32]]) -> Iterator[_Piece]:
    """The model's bytes, with the parameters where they lie."""
    for number, message in fields(plan.eval_graph):
        if number == _MODEL_GRAPH and isinstance(message, memoryview):
            graph = _with_values(message, plan.views(vector))
            yield field_head(number, _size(graph))
            yield from graph
        else:
            yield field(number, message)
    yield _metadata("kellet.plan", plan.hex_id)
    if plan.manifest.labels.names:
        yield _metadata("kellet.labels", "\n".join(plan.manifest.labels.names))


def _with_values(graph: memoryview, values: Mapping[str, np.ndarray]) -> list[_Piece]:
    pieces: list[_Piece] = [
        field(number, message)
        for number, message in fields(graph)
        if number != _GRAPH_INPUT or _name(message) not in values
    ]
    for name, value in values.items():
        tensor = _tensor(name, value)
        pieces += [field_head(_GRAPH_INITIALIZER, _size(tensor)), *tensor]
    return pieces


def _size(pieces: list[_Piece]) -> int:
    return sum(map(len, pieces))


def _name(value_info: int | memoryview) -> str:
    assert isinstance(value_info, memoryview)  # the plan was checked when it was opened
    name = dict(fields(value_info))[_INPUT_NAME]
    assert isinstance(name, memoryview)
    return bytes(name).decode()


def _tensor(name: str, value: np.ndarray) -> list[_Piece]:
    raw = value.astype("<f4", copy=False).reshape(-1).view(np.uint8).data
    return [
        *(field(_TENSOR_DIMS, size) for size in value.shape),
        field(_TENSOR_TYPE, _FLOAT),
        field(_TENSOR_NAME, name.encode()),
        field_head(_TENSOR_RAW, len(raw)),
        raw,
    ]


def _metadata(key: str, value: str) -> bytes:
    return field(_MODEL_METADATA, field(1, key.encode()) + field(2, value.encode()))
