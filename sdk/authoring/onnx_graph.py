"""From a flat program to the bytes of an ONNX graph as a plan wants it.

Values and nodes are numbered in order, and everything that does not change what
is computed (stack traces, documentation) is dropped: the same model gives the
same bytes, and no path of the author's machine is shipped.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
import torch
from onnx_ir.passes.common import InlinePass, RemoveUnusedNodesPass

from kellet.sdk.authoring.operators import translations
from kellet.sdk.authoring.quiet import quiet
from kellet.sdk.authoring.refusals import refusing
from kellet.sdk.authoring.trace import FlatProgram
from kellet.sdk.errors import ExportRefused
from kellet.sdk.plan.operators import MAX_IR_VERSION, OPERATORS

__all__ = ["OPSET", "onnx_graph"]

OPSET = 18

Shape = tuple[int, ...]


def onnx_graph(flat: FlatProgram, inputs: tuple[str, ...], tensors: Mapping[str, Shape]) -> bytes:
    """Return an encoded model with the inputs (``inputs``, then ``tensors``).

    ``tensors`` are those of the plan's vector, in order, with their shapes;
    one that the program does not use becomes an input all the same. Raises ``ExportRefused``.
    """
    with (
        quiet(),
        refusing(
            "the traced model cannot be written as ONNX",
            "replace the operator that it names by others",
        ),
    ):
        program = torch.onnx.export(
            flat.program,
            dynamo=True,
            custom_translation_table=translations(),
            opset_version=OPSET,
            optimize=True,
            verbose=False,
        )
        assert program is not None
        model = program.model
        InlinePass()(model)
        RemoveUnusedNodesPass()(model)
    _check_operators(model.graph)
    _name_interface(model.graph, flat, inputs, tensors)
    _strip(model)
    encoded: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return encoded


def _check_operators(graph: ir.Graph) -> None:
    used = {f"{node.domain}.{node.op_type}".removeprefix(".") for node in graph}
    unknown = sorted(used - OPERATORS)
    if unknown:
        raise ExportRefused(
            f"the model needs the operator {', '.join(unknown)}",
            why="it is not known to run in every onnxruntime from 1.20 on",
            repair="compute the same from simpler operators",
        )


def _name_interface(
    graph: ir.Graph, flat: FlatProgram, inputs: tuple[str, ...], tensors: Mapping[str, Shape]
) -> None:
    found, wanted = len(graph.inputs), len(inputs) + len(flat.tensors)
    if found != wanted or len(graph.outputs) != len(flat.outputs):
        raise ExportRefused(
            f"the ONNX graph has {found} inputs and {len(graph.outputs)} outputs",
            why=f"{wanted} and {len(flat.outputs)} were traced: the exporter lost some",
            repair="report this with the model",
        )
    _separate_outputs(graph)
    _number(graph)
    by_name = dict(zip((*inputs, *flat.tensors), list(graph.inputs), strict=True))
    for name, value in by_name.items():
        value.name = name
    unused = {
        name: ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        for name, shape in tensors.items()
        if name not in by_name
    }
    graph.inputs.clear()
    graph.inputs.extend((by_name | unused)[name] for name in (*inputs, *tensors))
    for name, value in zip(flat.outputs, graph.outputs, strict=True):
        value.name = name


def _number(graph: ir.Graph) -> None:
    """Name values and nodes by number; no tensor's name holds a slash."""
    constants = {f"/c{i}": value for i, value in enumerate(graph.initializers.values())}
    graph.initializers.clear()
    for name, value in constants.items():
        value.name = name
        graph.initializers[name] = value
    values = 0
    for place, node in enumerate(graph):
        # onnxruntime 1.20 names what it fuses after its nodes, and refuses a
        # graph in which two such names are the same.
        node.name = f"/n{place}"
        for value in node.outputs:
            value.name = f"/{values}"
            values += 1


def _separate_outputs(graph: ir.Graph) -> None:
    """Give each output a value of its own: one that is an input, a constant or
    another output as well would lose its name."""
    seen: set[int] = set()
    for place, value in enumerate(list(graph.outputs)):
        if id(value) in seen or value.producer() is None:
            copy = ir.node("Identity", [value])
            graph.append(copy)
            copy.outputs[0].type, copy.outputs[0].shape = value.type, value.shape
            graph.outputs[place] = copy.outputs[0]
        seen.add(id(graph.outputs[place]))


def _strip(model: ir.Model) -> None:
    graph = model.graph
    model.ir_version = min(model.ir_version or MAX_IR_VERSION, MAX_IR_VERSION)
    model.producer_name, model.producer_version = "kellet", None
    model.doc_string = graph.doc_string = None
    graph.name = "plan"
    model.metadata_props.clear()
    graph.metadata_props.clear()
    interface = {id(value) for value in (*graph.inputs, *graph.outputs)}
    values = [*graph.inputs, *graph.initializers.values()]
    for node in graph:
        node.doc_string = None
        node.metadata_props.clear()
        values.extend(node.outputs)
    for value in values:
        value.doc_string = None
        value.metadata_props.clear()
        if id(value) not in interface and not value.is_initializer():
            value.shape, value.type = None, None  # shapes of inner values follow by inference
