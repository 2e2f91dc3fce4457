"""Linear layers run forward on int8 activations: integer matrix products.

The activation is quantised over its range in the batch, multiplied by the
resident int8 weight exactly, in int32, and scaled back: by the product of the
activation's scale and that of the weight's row, which belongs to one output.
The backward pass stays float32 and sees the float activation, as if nothing
had been rounded (a straight-through estimate). Below 128 columns the
quantisation costs more than the product gains.

Of the activation's eight bits the range takes half: 0 to 128. x86 processors
without VNNI multiply two pairs and add them in 16 bits, which saturate at 255 *
127 * 2 (a Haswell gives half of the sum of 255 * 127), but hold 128 * 127 * 2.
So every processor gives the same integers, at the same speed, for one bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
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
    made: list[onnx.NodeProto] = []

    def put(operator: str, inputs: list[str], count: int = 1, **attributes: Any) -> list[str]:
        made.append(graph.node(operator, inputs, count, **attributes))
        return list(made[-1].output)

    nought = graph.share(np.zeros(1, np.float32))
    (least,) = put("ReduceMin", [node.input[0]], keepdims=0)
    (most,) = put("ReduceMax", [node.input[0]], keepdims=0)
    (low,) = put("Min", [least, nought])
    (high,) = put("Max", [most, nought])
    # The range low .. high + (high - low) quantised by ONNX's rule, for its scale and zero alone.
    (twice,) = put("Add", [high, high])
    (top,) = put("Sub", [twice, low])
    (ends,) = put("Concat", [low, top], axis=0)
    _, scale, zero = put("DynamicQuantizeLinear", [ends], 3)
    (values,) = put("QuantizeLinear", [node.input[0], scale, zero])
    (weight,) = put("Transpose", [f"int8::{name}"], perm=[1, 0])
    (product,) = put("MatMulInteger", [values, weight, zero])
    (number,) = put("Cast", [product], to=TensorProto.FLOAT)
    (scales,) = put("Mul", [scale, f"scales::{name}"])
    (scaled,) = put("Mul", [number, scales])
    if len(node.input) > 2 and node.input[2]:
        put("Add", [scaled, node.input[2]])
    made[-1].output[0] = node.output[0]
    return made
