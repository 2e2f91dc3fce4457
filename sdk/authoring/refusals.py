"""What a model must not have, found before it is traced, and named."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from kellet.sdk.errors import ExportRefused
from kellet.sdk.plan.manifest import RESERVED_NAMES, TENSOR_NAME

__all__ = ["Loss", "check_model", "check_runs", "refusing"]

Loss = Callable[[Any, Tensor], Tensor]


def check_model(model: nn.Module) -> None:
    """Refuse what is known not to become a plan. Raises ``ExportRefused``."""
    for name, module in model.named_modules():
        _check_module(name, module)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        if isinstance(tensor, UninitializedBuffer | UninitializedParameter):
            raise ExportRefused(
                f"{name} has no shape yet",
                why="a lazy layer takes its shape from its first batch",
                repair="run the model once on the example batch before the export",
            )
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise ExportRefused(
                f"{name} is {tensor.dtype}",
                why="a plan's parameters are one float32 vector",
                repair="model.float()",
            )
        if tensor.is_complex():
            raise ExportRefused(
                f"{name} is complex",
                why="a plan's parameters are one float32 vector",
                repair="hold real and imaginary parts as two tensors",
            )
        if tensor.device.type != "cpu":
            raise ExportRefused(
                f"{name} is on {tensor.device}",
                why="a plan is traced and checked on the CPU",
                repair="model.cpu()",
            )
        if name in RESERVED_NAMES or not re.fullmatch(TENSOR_NAME, name):
            raise ExportRefused(
                f"a tensor is called {name!r}",
                why=f"a plan's tensors match {TENSOR_NAME} and are not called "
                f"{', '.join(sorted(RESERVED_NAMES))}",
                repair="rename it in the model",
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ExportRefused(
            "the model has no parameter to train",
            why="requires_grad is False for all of them, or there are none",
            repair="set requires_grad on what a device should train",
        )


def check_runs(model: nn.Module, loss: Loss | None, batch: Tensor, labels: Tensor) -> Tensor:
    """Run one step in torch as it is; return the scores.

    Raises ``ExportRefused`` where that fails or leaves a parameter without a
    gradient.
    """
    if len(batch) != len(labels):
        raise ExportRefused(
            f"the example has {len(batch)} rows and {len(labels)} labels",
            why="each row needs one label",
            repair="give as many labels as rows",
        )
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        raise ExportRefused(
            "the loss has parameters to train",
            why="a plan trains those of the model",
            repair="move them into the model",
        )
    model = copy.deepcopy(model)
    with refusing("the model does not run on its example", "give a batch that it takes"):
        scores = model(batch)
    if not isinstance(scores, Tensor):
        raise ExportRefused(
            f"the model returns a {type(scores).__name__}",
            why="a plan's eval graph gives one tensor of scores",
            repair="return the scores alone",
        )
    with refusing("the loss does not run on the example", "give labels that it takes"):
        found = F.cross_entropy(scores, labels) if loss is None else loss(scores, labels)
    if not isinstance(found, Tensor) or found.shape != () or found.dtype != torch.float32:
        kind = (
            f"{found.dtype} {list(found.shape)}"
            if isinstance(found, Tensor)
            else type(found).__name__
        )
        raise ExportRefused(
            f"the loss is {kind}",
            why="it must be one float32 number, the mean over the batch",
            repair="end the loss with .mean()",
        )
    with refusing("the loss has no gradient", "let it depend on a trained parameter"):
        found.backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.grad is None:
            raise ExportRefused(
                f"{name} gets no gradient",
                why="the loss does not depend on it",
                repair=f"use it, or freeze it: model.{name}.requires_grad_(False)",
            )
    return scores.detach()


@contextmanager
def refusing(what: str, repair: str) -> Iterator[None]:
    """Turn any failure inside into ``ExportRefused``, with the cause kept.

    torch raises errors of many kinds while it traces and writes. A refusal of
    ours among their causes comes out as it is.
    """
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ExportRefused):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        if "Constraints violated (batch)" in str(error):
            raise ExportRefused(
                "the batch axis is not free",
                why="somewhere the model fixes the number of rows to that of the example",
                repair="take it from the input: x.shape[0], or -1 in a reshape",
            ) from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = lines[0][:400] if lines else type(error).__name__
        raise ExportRefused(what, why=why, repair=repair) from error


def _check_module(name: str, module: nn.Module) -> None:
    what = f"the layer {name!r} ({type(module).__name__})" if name else type(module).__name__
    if module.training and _dropout_of(module) > 0:
        raise ExportRefused(
            f"{what} drops at random with p={_dropout_of(module):g}",
            why="a step must give the same gradient for the same batch on every machine",
            repair="set its p to 0, or put it in evaluation with .eval()",
        )
    is_norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
    if is_norm and module.training and module.track_running_stats and module.momentum is None:
        raise ExportRefused(
            f"{what} has momentum=None",
            why="it would weight its statistics by a count of steps, an integer that a plan "
            "does not carry",
            repair="give it a momentum, such as 0.1",
        )


def _dropout_of(module: nn.Module) -> float:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return float(module.p)
    if isinstance(module, nn.RNNBase):
        return float(module.dropout) if module.num_layers > 1 else 0.0
    if isinstance(module, nn.MultiheadAttention):
        return float(module.dropout)
    return 0.0
