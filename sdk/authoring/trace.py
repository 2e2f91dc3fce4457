"""From a module and a loss to one flat function of arrays.

``torch.export`` gives the forward graph, torch's joint decomposition appends
the backward one. Its results are marked as loss, gradients and mutated
buffers, and the ONNX exporter drops outputs that are so marked - it reports
success and writes an empty graph. So the joint graph is exported a second
time, as a plain function (batch, labels, tensors...) -> (loss, gradients...,
new buffers...).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from kellet.sdk.authoring import operators
from kellet.sdk.authoring.decompositions import decompositions
from kellet.sdk.authoring.quiet import quiet
from kellet.sdk.authoring.refusals import Loss, refusing
from kellet.sdk.authoring.ties import share, untie
from kellet.sdk.authoring.torch_private import is_random, joint_graph
from kellet.sdk.errors import ExportRefused

__all__ = ["FlatProgram", "trace_eval", "trace_step"]

_BATCH = Dim("batch", min=1, max=1 << 16)
_PREFIX = "model."
_TRACE_REPAIR = (
    "use shapes and branches that do not depend on the numbers in the batch; "
    "torch.export.export(model, (batch,)) shows the whole trace"
)


@dataclass(frozen=True)
class FlatProgram:
    """A function of (batch[, labels], tensors...).

    ``tensors`` are named after the model's parameters and buffers. ``outputs``
    are named as in a plan's graphs.
    """

    program: ExportedProgram
    tensors: tuple[str, ...]
    outputs: tuple[str, ...]


class _WithLoss(nn.Module):
    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        super().__init__()
        self.ties = untie(model)
        self.model = model
        self.loss = loss

    def forward(self, batch: Tensor, labels: Tensor) -> Tensor:
        with share(self.ties):
            scores = self.model(batch)
        if self.loss is None:
            loss: Tensor = operators.mean_cross_entropy(scores, labels)[0]
            return loss
        return self.loss(scores, labels)


class _Scores(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.ties = untie(model)
        self.model = model

    def forward(self, batch: Tensor) -> Any:
        with share(self.ties):
            return self.model(batch)


class _Flat(nn.Module):
    """An exported graph as a function whose tensors are arguments.

    ``arguments`` says for each placeholder of the graph where it comes from:
    the name of a tensor, the index of a batch input, or a constant.
    """

    def __init__(self, graph: GraphModule, arguments: Sequence[str | int | Tensor]) -> None:
        super().__init__()
        self._graph = [graph]  # in a list: its own parameters are not this module's
        self._arguments = tuple(arguments)
        self.names = tuple(a for a in arguments if isinstance(a, str))

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        inputs = len(values) - len(self.names)
        tensors = iter(values[inputs:])
        call = []
        for argument in self._arguments:
            if isinstance(argument, Tensor):
                call.append(argument)
            else:
                call.append(values[argument] if isinstance(argument, int) else next(tensors))
        return tuple(self._graph[0](*call))


def trace_step(model: nn.Module, loss: Loss | None, batch: Tensor, labels: Tensor) -> FlatProgram:
    """Trace loss, gradients and new buffers. ``loss`` None is mean cross-entropy.

    Raises ``ExportRefused``.
    """
    model = copy.deepcopy(model)
    with _tracing(), refusing("the model cannot be traced", _TRACE_REPAIR):
        axes = ({0: _BATCH}, {0: _BATCH})
        wrapped = _WithLoss(model, loss)
        forward = torch.export.export(wrapped, (batch, labels), dynamic_shapes=axes, strict=False)
    with _tracing(), refusing("the gradient cannot be traced", _TRACE_REPAIR):
        joint = joint_graph(forward, decompositions())
    _check_not_random(joint)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    results = _joint_results(joint, trained)
    return _flatten(joint, results, (batch, labels))


def trace_eval(model: nn.Module, batch: Tensor) -> FlatProgram:
    """Trace the scores in evaluation mode. Raises ``ExportRefused``."""
    model = copy.deepcopy(model).eval()
    axes = ({0: _BATCH},)
    with _tracing(), refusing("the model cannot be traced in evaluation", _TRACE_REPAIR):
        with torch.no_grad():
            wrapped = _Scores(model)
            forward = torch.export.export(wrapped, (batch,), dynamic_shapes=axes, strict=False)
        forward = forward.run_decompositions(decompositions())
    _check_not_random(forward)
    output = forward.graph_signature.user_outputs[-1]
    return _flatten(forward, {"scores": output}, (batch,))


@contextmanager
def _tracing() -> Iterator[None]:
    """Let attention be traced as plain matrix products, not as a fused kernel."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), quiet():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _check_not_random(program: ExportedProgram) -> None:
    for node in program.graph.nodes:
        if node.op == "call_function" and is_random(node.target):
            modules = node.meta.get("nn_module_stack") or {}
            where = next((path for path, _ in reversed(modules.values()) if path), "the model")
            raise ExportRefused(
                f"{where.removeprefix(_PREFIX)} draws random numbers ({node.target})",
                why="a step must give the same gradient for the same batch on every machine",
                repair="switch dropout and noise off before the export",
            )


def _joint_results(joint: ExportedProgram, trained: Sequence[str]) -> dict[str, str]:
    """Map a plan's output names to values of the joint graph, in order."""
    losses: dict[str, str] = {}
    gradients: dict[str, str] = {}
    buffers: dict[str, str] = {}
    for spec in joint.graph_signature.output_specs:
        name = getattr(spec.arg, "name", "")
        target = (spec.target or "").removeprefix(_PREFIX)
        if spec.kind is OutputKind.LOSS_OUTPUT:
            losses["loss"] = name
        elif spec.kind is OutputKind.GRADIENT_TO_PARAMETER and name:
            gradients[target] = name
        elif (
            spec.kind is OutputKind.BUFFER_MUTATION
            and _tensor(joint, spec.target).is_floating_point()
        ):
            buffers[f"buffer::{target}"] = name
    missing = [name for name in trained if name not in gradients]
    if missing or not losses:
        raise ExportRefused(
            f"the traced gradient lacks {missing[0] if missing else 'the loss'}",
            why="torch's joint trace lost an output",
            repair="report this with the model",
        )
    return losses | {f"grad::{name}": gradients[name] for name in trained} | buffers


def _flatten(
    program: ExportedProgram, results: dict[str, str], inputs: tuple[Tensor, ...]
) -> FlatProgram:
    graph = copy.deepcopy(program.graph_module)
    _return_only(graph, list(results.values()))
    arguments: list[str | int | Tensor] = []
    batch_inputs = 0
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    mutated = set(program.graph_signature.buffers_to_mutate.values())
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            arguments.append(batch_inputs)
            batch_inputs += 1
            continue
        if not node.users:
            graph.graph.erase_node(node)
            continue
        value = _tensor(program, spec.target).detach().clone()
        if not value.is_floating_point() and spec.target in mutated:
            raise ExportRefused(
                f"{spec.target.removeprefix(_PREFIX)} is an integer buffer that changes "
                "and is used",
                why="a plan carries float32 state only",
                repair="make it a float32 buffer, or do without it",
            )
        fixed = spec.kind is InputKind.CONSTANT_TENSOR or spec.persistent is False
        own = spec.target.startswith(_PREFIX) and value.is_floating_point()
        travels = own and (not fixed or spec.target in mutated)
        arguments.append(spec.target if travels else value)
    graph.recompile()
    flat = _Flat(graph, arguments)
    values = tuple(_tensor(program, name).detach().clone() for name in flat.names)
    axes = ((*({0: _BATCH} for _ in inputs), *({} for _ in values)),)
    with torch.no_grad(), quiet(), refusing("the traced model cannot be made flat", _TRACE_REPAIR):
        exported = torch.export.export(flat, (*inputs, *values), dynamic_shapes=axes, strict=False)
    names = tuple(name.removeprefix(_PREFIX) for name in flat.names)
    return FlatProgram(exported, names, tuple(results))


def _return_only(graph: GraphModule, names: Sequence[str]) -> None:
    """Make the named values the only outputs, and drop what nothing needs then."""
    by_name = {node.name: node for node in graph.graph.nodes}
    output = next(node for node in graph.graph.nodes if node.op == "output")
    output.args = (tuple(by_name[name] for name in names),)
    graph.graph.eliminate_dead_code()


def _tensor(program: ExportedProgram, name: str) -> Tensor:
    found = program.state_dict.get(name)
    value = program.constants[name] if found is None else found
    assert isinstance(value, Tensor)
    return value
