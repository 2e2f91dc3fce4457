"""Just enough of ONNX's wire format to know a graph before running it.

A device has no ``onnx`` package. It still must not hand a stranger's graph to
the runtime unread: a graph may name files to load, or loop for ever. This
module walks the protobuf encoding (field numbers from onnx.proto3), collects
what a plan must agree with, and refuses what a plan has no use for. Its two
ends, `fields` and `field`, also let a checkpoint be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kellet.sdk.errors import PlanError

__all__ = ["GraphFacts", "field", "field_head", "fields", "inspect_graph"]

_MODEL_IR, _MODEL_GRAPH, _MODEL_OPSET, _MODEL_TRAINING, _MODEL_FUNCTIONS = 1, 7, 8, 20, 25
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT, _GRAPH_SPARSE = 1, 5, 11, 12, 15
_NODE_OP, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS, _ATTRIBUTE_SUBGRAPHS = 5, 10, (6, 11)
_TENSOR_EXTERNAL, _TENSOR_LOCATION = 13, 14
_VALUE_NAME = 1
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2

Value = int | memoryview


@dataclass(frozen=True)
class GraphFacts:
    """What `inspect_graph` found."""

    ir_version: int
    opset: int
    operators: frozenset[str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def inspect_graph(model: bytes | memoryview) -> GraphFacts:
    """Return the facts of an encoded ONNX model.

    Raises ``PlanError`` for what is not ONNX, and for operators of another
    domain, subgraphs, functions, and weights in other files.
    """
    ir_version, opset = 0, 0
    graphs: list[memoryview] = []
    for number, value in fields(memoryview(model)):
        if number == _MODEL_IR:
            ir_version = _number(value)
        elif number == _MODEL_GRAPH:
            graphs.append(_message(value))
        elif number == _MODEL_OPSET:
            opset = max(opset, _opset(_message(value)))
        elif number in (_MODEL_TRAINING, _MODEL_FUNCTIONS):
            raise _refused("it brings functions or training steps of its own")
    if len(graphs) != 1:
        raise _refused(f"it has {len(graphs)} graphs where one is needed")
    operators: set[str] = set()
    inputs: list[str] = []
    outputs: list[str] = []
    for number, value in fields(graphs[0]):
        if number == _GRAPH_NODE:
            operators.add(_operator(_message(value)))
        elif number == _GRAPH_INITIALIZER:
            _check_tensor(_message(value))
        elif number == _GRAPH_INPUT:
            inputs.append(_text(_message(value), _VALUE_NAME))
        elif number == _GRAPH_OUTPUT:
            outputs.append(_text(_message(value), _VALUE_NAME))
        elif number == _GRAPH_SPARSE:
            raise _refused("it holds sparse weights")
    return GraphFacts(ir_version, opset, frozenset(operators), tuple(inputs), tuple(outputs))


def field(number: int, value: int | bytes | memoryview) -> bytes:
    """Encode one field: an integer as a varint, bytes with their length."""
    if isinstance(value, int):
        return _encode(number << 3) + _encode(value)
    return b"".join([field_head(number, len(value)), value])


def field_head(number: int, size: int) -> bytes:
    """What comes before the ``size`` bytes of a field."""
    return _encode(number << 3 | 2) + _encode(size)


def _encode(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _opset(message: memoryview) -> int:
    domain = _text(message, _OPSET_DOMAIN)
    if domain not in ("", "ai.onnx"):
        raise _refused(f"it needs operators of the domain {domain!r}")
    return next((_number(v) for n, v in fields(message) if n == _OPSET_VERSION), 0)


def _operator(node: memoryview) -> str:
    operator = ""
    for number, value in fields(node):
        if number == _NODE_OP:
            operator = _decode(_message(value))
        elif number == _NODE_DOMAIN and bytes(_message(value)) not in (b"", b"ai.onnx"):
            raise _refused(f"it needs operators of the domain {_decode(_message(value))!r}")
        elif number == _NODE_ATTRIBUTE:
            for inner, content in fields(_message(value)):
                if inner in _ATTRIBUTE_SUBGRAPHS:
                    raise _refused("it holds a subgraph (a loop or a branch)")
                if inner in (_ATTRIBUTE_TENSOR, _ATTRIBUTE_TENSORS):
                    _check_tensor(_message(content))
    return operator


def _check_tensor(tensor: memoryview) -> None:
    for number, value in fields(tensor):
        if number == _TENSOR_EXTERNAL or (number == _TENSOR_LOCATION and value != 0):
            raise _refused("it keeps weights in another file")


def _text(message: memoryview, wanted: int) -> str:
    found = [value for number, value in fields(message) if number == wanted]
    return _decode(_message(found[-1])) if found else ""


def _decode(raw: memoryview) -> str:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError:
        raise _refused("a name in it is not text") from None


def _message(value: Value) -> memoryview:
    if isinstance(value, int):
        raise _refused("a field has the wrong type")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise _refused("a field has the wrong type")
    return value


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield (number, value) of each field of a message; raises ``PlanError``."""
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == 0:
            integer, position = _varint(data, position)
            yield number, integer
            continue
        if kind == 2:
            length, position = _varint(data, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise _refused("it is not in ONNX's encoding")
        if length > end - position:
            raise _refused("it ends in the middle of a field")
        yield number, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise _refused("it is not in ONNX's encoding")


def _refused(why: str) -> PlanError:
    return PlanError("a graph of the plan is refused", why=why, repair="export the plan again")
