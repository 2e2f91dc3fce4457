"""From a PyTorch model to a plan, or a refusal that says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kellet.sdk.authoring import bundle
from kellet.sdk.authoring.meaning import check_meaning, check_name
from kellet.sdk.authoring.onnx_graph import onnx_graph
from kellet.sdk.authoring.refusals import Loss, check_model, check_runs
from kellet.sdk.authoring.trace import FlatProgram, trace_eval, trace_step
from kellet.sdk.authoring.verify import check_against_torch
from kellet.sdk.errors import ExportRefused
from kellet.sdk.plan import InputSpec, LabelSpec, Plan
from kellet.sdk.plan.manifest import layout
from kellet.sdk.variants import add_variants
from kellet.sdk.variants.memory import activation_peaks

__all__ = ["export"]


def export(
    model: nn.Module,
    loss: Loss | None,
    example_batch: Tensor,
    example_labels: Tensor,
    *,
    name: str,
    classes: int | None = None,
    label_names: Sequence[str] = (),
    columns: Sequence[str] = (),
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    statistics: Literal["mean", "local"] = "mean",
    licence: str = "",
    author: str = "",
    description: str = "",
    schemes: Sequence[str] | None = None,
) -> Plan:
    """Turn a model and its loss into a plan, checked against torch.

    Parameters
    ----------
    model:
        Each part is traced in the mode that it is in: a batch norm in training
        updates its statistics, one in evaluation keeps them. Parameters whose
        ``requires_grad`` is False are frozen and cost no backward pass.
    loss:
        ``loss(outputs, labels) -> scalar``, the mean over the batch; None, or
        torch's plain cross-entropy, for a classifier.
    example_batch, example_labels:
        At least two rows, float32 or int64. They become the plan's self-test.
    classes, label_names:
        Of a classifier with a loss of its own; without them the plan has no
        accuracy. Mean cross-entropy takes the number from the scores.
    columns, unit, low, high:
        What the input means (`kellet.sdk.plan.InputSpec`). Give ``low`` and
        ``high`` where an integer input indexes an embedding.
    statistics:
        How the server treats running statistics: "mean", or "local".
    schemes:
        The variants that the plan has (`kellet.sdk.variants.add_variants`); all
        that apply, unless given.

    Raises ``ExportRefused`` for a model that cannot be traced, draws random
    numbers, fixes the batch size, needs an operator that is not known to run
    in onnxruntime 1.20, or whose plan differs from torch by more than 1e-5 in
    any gradient at three batch sizes; ``UsageError`` for names and bounds that
    do not fit the model.
    """
    check_name(name)
    loss = None if _is_cross_entropy(loss) else loss
    batch, labels = _example("batch", example_batch), _example("labels", example_labels)
    check_model(model)
    scores = check_runs(model, loss, batch, labels)
    given = LabelSpec(classes=classes, names=tuple(label_names))
    label_spec = _label_spec(loss, labels, scores, given)
    input_spec = InputSpec(
        shape=tuple(batch.shape[1:]),
        dtype="float32" if batch.is_floating_point() else "int64",
        unit=unit,
        columns=tuple(columns),
        low=low,
        high=high,
    )
    check_meaning(input_spec, label_spec)
    step = trace_step(model, loss, batch, labels)
    evaluate = trace_eval(model, batch)
    tensors = _tensors(model, step, evaluate, statistics)
    placed = layout([(t.name, t.value.shape, t.role, t.aggregate) for t in tensors])
    shapes = {tensor.name: tensor.shape for tensor in placed}
    step_graph = onnx_graph(step, ("batch", "labels"), shapes)
    plan = Plan.open(
        bundle.write_bundle(
            name=name,
            step=step_graph,
            evaluate=onnx_graph(evaluate, ("batch",), shapes),
            tensors=tensors,
            input=input_spec,
            labels=label_spec,
            loss="cross_entropy" if loss is None else "custom",
            example_batch=batch.numpy(),
            example_labels=labels.numpy(),
            memory=activation_peaks(
                step_graph, {t.name: t.value for t in tensors}, batch.numpy(), labels.numpy()
            ),
            licence=licence,
            author=author,
            description=description,
        )
    )
    check_against_torch(plan, model, loss, batch, labels)
    return add_variants(plan, schemes)


def _is_cross_entropy(loss: Loss | None) -> bool:
    if loss is F.cross_entropy:
        return True
    plain = nn.CrossEntropyLoss()
    return isinstance(loss, nn.CrossEntropyLoss) and (
        loss.weight is None
        and loss.ignore_index == plain.ignore_index
        and loss.reduction == plain.reduction
        and loss.label_smoothing == plain.label_smoothing
    )


def _example(what: str, tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.dim() == 0 or len(tensor) < 2:
        found = list(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ExportRefused(
            f"the example {what} is {found}",
            why="with fewer than two rows the batch axis cannot be told from a constant",
            repair="give a tensor of two rows or more",
        )
    if tensor.dtype not in (torch.float32, torch.int64):
        raise ExportRefused(
            f"the example {what} is {tensor.dtype}",
            why="a plan takes float32 or int64",
            repair=f"convert the {what} with .float() or .long()",
        )
    return tensor.detach().cpu().contiguous()


def _tensors(
    model: nn.Module,
    step: FlatProgram,
    evaluate: FlatProgram,
    statistics: Literal["mean", "local"],
) -> list[bundle.Tensor]:
    updated = {o.removeprefix("buffer::") for o in step.outputs if o.startswith("buffer::")}
    used = {*step.tensors, *evaluate.tensors}
    tensors = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            tensors.append(bundle.Tensor(name, _array(parameter)))
        elif name in used:
            tensors.append(bundle.Tensor(name, _array(parameter), "frozen"))
    for name, buffer in model.named_buffers():
        if name in updated:
            tensors.append(bundle.Tensor(name, _array(buffer), "buffer", statistics))
        elif name in used:
            tensors.append(bundle.Tensor(name, _array(buffer), "frozen"))
    return tensors


def _label_spec(loss: Loss | None, labels: Tensor, scores: Tensor, given: LabelSpec) -> LabelSpec:
    """Complete what was ``given`` with what the tensors say."""
    if loss is not None:
        return LabelSpec(
            classes=given.classes or len(given.names) or None,
            names=given.names,
            dtype="float32" if labels.is_floating_point() else "int64",
            shape=tuple(labels.shape[1:]),
        )
    if scores.dim() != 2 or labels.dim() != 1 or labels.is_floating_point():
        raise ExportRefused(
            f"cross-entropy of scores {list(scores.shape)} and labels {list(labels.shape)}",
            why="it takes scores [batch, classes] and int64 labels [batch]",
            repair="give a loss of your own for other shapes",
        )
    if given.classes not in (None, scores.shape[1]):
        raise ExportRefused(
            f"the model has {scores.shape[1]} scores a row for {given.classes} classes",
            why="cross-entropy needs one score a class",
            repair="correct the number, or the last layer",
        )
    return LabelSpec(classes=int(scores.shape[1]), names=given.names)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()
