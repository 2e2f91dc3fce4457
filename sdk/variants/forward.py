"""Linear layers run forward on int8 activations: integer matrix products.

The activation is quantised to uint8 over its range in the batch, multiplied by
the resident int8 weight exactly, in int32, and scaled back: by the product of
the activation's scale and that of the weight's row, which belongs to one
output. The backward pass stays float32 and sees the float activation, as if
nothing had been rounded (a straight-through estimate). Below 128 columns the
quantisation costs more than the product gains.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from kellet.sdk.plan.schemes import Int8Layout
from kellet.sdk.variants.graph import Graph
from kellet.sdk.variants.resident import View, views

__all__ = ["MIN_COLUMNS", "integer_forward", "linear_layers"]

MIN_COLUMNS = 128


def integer_forward(graph: Graph, layout: Int8Layout) -> None:
    """Exchange the wide linear layers of the forward pass, in place, before `make_resident`."""
    wide = linear_layers(graph, layout)
    nodes: list[onnx.NodeProto] = []
    for node in graph.nodes:
        nodes += _integer(graph, node, wide[node.output[0]]) if node.output[0] in wide else [node]
    graph.nodes = nodes


def linear_layers(graph: Graph, layout: Int8Layout) -> dict[str, View]:
    """Return the weights of wide linear layers, by the name of the layer's output.

    Such a node is one that the loss depends on and that sums along the rows of
    its weight: so a row's scale is that of one output.
    """
    found = views(graph, layout)
    wide = {}
    for node in graph.ancestors("loss"):
        if node.op_type not in ("Gemm", "MatMul") or node.input[1] not in found:
            continue
        view = found[node.input[1]]
        options = {a.name: a for a in node.attribute}
        turned = "transB" in options and options["transB"].i == 1
        plain = (
            all(options[name].f == 1 for name in ("alpha", "beta") if name in options)
            and not ("transA" in options and options["transA"].i)
            and node.input[0] not in found
        )
        along_rows = view.is_transposed if not turned else not view.nodes
        is_matrix = len(view.held.tensor.shape) == 2 and view.held.shape == view.held.tensor.shape
        if plain and along_rows and is_matrix and view.held.shape[1] >= MIN_COLUMNS:
            wide[node.output[0]] = view
    return wide


def _integer(graph: Graph, node: onnx.NodeProto, view: View) -> list[onnx.NodeProto]:
    name = view.held.tensor.name
    quantise = graph.node("DynamicQuantizeLinear", [node.input[0]], 3)
    values, scale, zero = quantise.output
    weight = graph.node("Transpose", [f"int8::{name}"], perm=[1, 0])
    product = graph.node("MatMulInteger", [values, weight.output[0], zero])
    number = graph.node("Cast", product.output, to=TensorProto.FLOAT)
    scales = graph.node("Mul", [scale, f"scales::{name}"])
    scaled = graph.node("Mul", [number.output[0], scales.output[0]])
    made = [quantise, weight, product, number, scales, scaled]
    if len(node.input) > 2 and node.input[2]:
        made.append(graph.node("Add", [scaled.output[0], node.input[2]]))
    made[-1].output[0] = node.output[0]
    return made
