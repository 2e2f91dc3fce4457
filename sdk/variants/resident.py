"""Weights in int8, decoded right before each of their consumers.

A decoded weight then lives for one node. With one decoding for all of them it
would live from its use in the forward pass to that in the backward pass, and
all weights would be in memory as float32 at once. Views of a weight
(transposed, reshaped) are taken anew for each consumer as well; transposes of
transposes cancel, and Gemm transposes by itself. An embedding is decoded whole
before rows are gathered from it: simple, and no more memory than float32 takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from kellet.sdk.plan.bundle import step_inputs
from kellet.sdk.plan.manifest import Manifest
from kellet.sdk.plan.schemes import Int8Layout, Int8Tensor
from kellet.sdk.variants.graph import Graph

__all__ = ["View", "make_resident", "resident_inputs", "views"]

_VIEWS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten")


@dataclass(frozen=True)
class View:
    """A value that is a resident tensor looked at in another way.

    ``nodes`` lead from the tensor to the value, without transposes that cancel.
    """

    held: Int8Tensor
    nodes: tuple[onnx.NodeProto, ...] = ()

    @property
    def is_transposed(self) -> bool:
        """Whether it is a matrix with its axes exchanged, and nothing else."""
        return (
            len(self.nodes) == 1
            and len(self.held.tensor.shape) == 2
            and _permutation(self.nodes[0]) == (1, 0)
        )


def make_resident(graph: Graph, layout: Int8Layout) -> None:
    """Exchange the resident tensors of a step for int8 values and scales, in place.

    Decodings come first in the list of nodes, so that the runtime runs them
    last: it goes back from the outputs and, of a node's inputs, follows the one
    that stands later in the list before the others. Right before its consumer
    in the list, a decoding of the backward pass would run in the forward pass
    (in plans that train biases alone, it did).
    """
    found = views(graph, layout)
    nodes: list[onnx.NodeProto] = []
    first = [node for node in graph.nodes if node.op_type == "Constant"]  # views read them
    for node in graph.nodes:
        if node.output[0] in found or node.op_type == "Constant":
            continue  # a view is taken anew where it is used
        if node.op_type == "Gemm" and node.input[1] in found:
            node = _gemm(node, found)  # noqa: PLW2901
        for place, name in enumerate(node.input):
            if name in found:
                decoded = _decode(graph, found[name])
                first += decoded
                node.input[place] = decoded[-1].output[0]
        nodes.append(node)
    graph.nodes = [*first, *nodes]


def resident_inputs(
    graph: Graph, manifest: Manifest, scheme: str
) -> dict[str, onnx.ValueInfoProto]:
    """Return the inputs of a variant's graph, in order."""
    made = dict(graph.inputs)
    layout = Int8Layout.of(manifest, scheme)
    for held in (*layout.weights, *layout.frozen):
        for prefix, kind, shape in (
            ("int8", TensorProto.INT8, held.shape),
            ("scales", TensorProto.FLOAT, held.shape[:1]),
        ):
            name = f"{prefix}::{held.tensor.name}"
            made[name] = helper.make_tensor_value_info(name, kind, shape)
    return {name: made[name] for name in step_inputs(manifest, scheme)}


def views(graph: Graph, layout: Int8Layout) -> dict[str, View]:
    """Return the resident tensors and every view of them, by the name of the value."""
    found = {held.tensor.name: View(held) for held in (*layout.weights, *layout.frozen)}
    for node in graph.nodes:
        if node.op_type not in _VIEWS or node.input[0] not in found:
            continue
        fixed = all(graph.constant(name) is not None for name in node.input[1:] if name)
        if fixed and node.output[0] not in graph.outputs:
            found[node.output[0]] = _behind(found[node.input[0]], node)
    return found


def _behind(view: View, node: onnx.NodeProto) -> View:
    """Return the view that ``node`` takes of ``view``."""
    if node.op_type == "Identity":
        return view
    after, before = _permutation(node), _permutation(view.nodes[-1]) if view.nodes else ()
    if not after or not before:
        return replace(view, nodes=(*view.nodes, node))
    both = tuple(before[axis] for axis in after)
    if both == tuple(range(len(both))):
        return replace(view, nodes=view.nodes[:-1])
    transpose = helper.make_node("Transpose", view.nodes[-1].input[:1], node.output, perm=both)
    return replace(view, nodes=(*view.nodes[:-1], transpose))


def _permutation(node: onnx.NodeProto) -> tuple[int, ...]:
    """Return a Transpose's permutation; empty for another node, or where it is the default."""
    if node.op_type != "Transpose":
        return ()
    return tuple(axis for attribute in node.attribute for axis in attribute.ints)


def _gemm(node: onnx.NodeProto, found: dict[str, View]) -> onnx.NodeProto:
    """Return a Gemm that transposes its weight by itself."""
    view = found[node.input[1]]
    if not view.is_transposed:
        return node
    made = onnx.NodeProto()
    made.CopyFrom(node)
    turned = next((a for a in made.attribute if a.name == "transB"), None)
    was = turned.i if turned is not None else 0
    if turned is not None:
        made.attribute.remove(turned)
    if not was:
        made.attribute.append(helper.make_attribute("transB", 1))
    made.input[1] = view.held.tensor.name
    return made


def _decode(graph: Graph, view: View) -> list[onnx.NodeProto]:
    """Return the nodes that decode a weight and take a view of it; the last one has the value."""
    held = view.held
    name = held.tensor.name
    nodes = [graph.node("DequantizeLinear", [f"int8::{name}", f"scales::{name}"], axis=0)]
    follow = list(view.nodes)
    # onnxruntime 1.20 quantises anew what is transposed right after it was decoded, and fails at
    # it for want of a zero point; other releases spare what has none. A reshape comes between.
    if (follow or held.shape != held.tensor.shape) and not _forgets(graph, follow):
        shape = graph.share(np.array(held.tensor.shape, np.int64))
        nodes.append(graph.node("Reshape", [nodes[-1].output[0], shape]))
    for node in follow:
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.name = graph.fresh()
        made.input[0] = nodes[-1].output[0]
        made.output[0] = graph.fresh()
        nodes.append(made)
    return nodes


def _forgets(graph: Graph, nodes: list[onnx.NodeProto]) -> bool:
    """Whether the first of ``nodes`` reshapes, whatever the shape was before."""
    if not nodes or nodes[0].op_type != "Reshape":
        return False
    shape = graph.constant(nodes[0].input[1])
    return shape is not None and bool((shape != 0).all())
