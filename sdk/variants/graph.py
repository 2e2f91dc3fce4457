"""A plan's graph taken apart for rewriting, and put together again.

What comes out depends on what went in and on nothing else: the same graph
gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["Graph"]


class Graph:
    """An ONNX model whose nodes are exchanged. ``nodes`` are in the order of execution."""

    def __init__(self, encoded: bytes | memoryview) -> None:
        self._model = onnx.load_from_string(bytes(encoded))
        graph = self._model.graph
        self.nodes: list[onnx.NodeProto] = list(graph.node)
        self.outputs: tuple[str, ...] = tuple(output.name for output in graph.output)
        self.inputs: dict[str, onnx.ValueInfoProto] = {value.name: value for value in graph.input}
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._shared: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._names = {*self.inputs, *self._constants}
        for node in self.nodes:
            self._names.update([node.name, *node.output])
        self._count = 0

    def fresh(self) -> str:
        """Return a name that no value and no node of the graph has."""
        while (name := f"/v{self._count}") in self._names:
            self._count += 1
        self._names.add(name)
        return name

    def node(
        self, operator: str, inputs: Sequence[str], count: int = 1, **attributes: Any
    ) -> onnx.NodeProto:
        """Make a node with fresh names; it is not yet among ``nodes``."""
        outputs = [self.fresh() for _ in range(count)]
        return helper.make_node(operator, list(inputs), outputs, name=self.fresh(), **attributes)

    def share(self, value: np.ndarray) -> str:
        """Return the name of a constant of this value; one for all that ask."""
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._shared:
            name = self._shared[key] = self.fresh()
            self._constants[name] = numpy_helper.from_array(value, name)
        return self._shared[key]

    def constant(self, name: str) -> np.ndarray | None:
        """Return the value of ``name``, if it is a constant."""
        if name in self._constants:
            return numpy_helper.to_array(self._constants[name])
        for node in self.nodes:
            if node.op_type == "Constant" and name in node.output:
                return next(
                    (numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"), None
                )
        return None

    def ancestors(self, value: str) -> Iterator[onnx.NodeProto]:
        """Yield the nodes that ``value`` depends on, last ones first."""
        needed = {value}
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                yield node

    def encoded(
        self, inputs: Mapping[str, onnx.ValueInfoProto], outputs: Iterable[str] | None = None
    ) -> bytes:
        """Return the model with ``inputs`` in their order and, of its outputs, ``outputs``.

        Nodes and constants that no output needs are left out.
        """
        graph = self._model.graph
        wanted = list(self.outputs if outputs is None else outputs)
        by_name = {output.name: output for output in graph.output}
        needed, kept = set(wanted), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                kept.append(node)
        constants = [tensor for name, tensor in self._constants.items() if name in needed]
        made = onnx.GraphProto(name=graph.name)
        made.node.extend(reversed(kept))
        made.initializer.extend(constants)
        made.input.extend(inputs.values())
        made.output.extend(by_name[name] for name in wanted)
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        model.graph.CopyFrom(made)
        encoded: bytes = model.SerializeToString(deterministic=True)
        return encoded
