"""Does the plan compute what torch computes?

Every gradient, buffer and score is held against the model itself, run by torch
in the ordinary way, at three batch sizes and at two points: the initial
parameters and others nearby, for layers that start at zero hide their
neighbours' gradients.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kellet.sdk.authoring.refusals import Loss
from kellet.sdk.errors import DataError, ExportRefused, PlanError
from kellet.sdk.plan import Plan

__all__ = ["BATCH_SIZES", "TOLERANCE", "check_against_torch"]

_Rows = tuple[Tensor, Tensor]

BATCH_SIZES = (1, 3, 8)
TOLERANCE = 1e-5


def check_against_torch(
    plan: Plan, model: nn.Module, loss: Loss | None, batch: Tensor, labels: Tensor
) -> float:
    """Return the largest relative error. Raises ``ExportRefused`` above 1e-5.

    An error is relative to the largest entry of its tensor, or to a tenth of
    the largest entry of all gradients where that is more: a gradient that is
    zero but for rounding (a bias before a batch norm) has no digits to compare.
    """
    batch = _varied(batch)
    worst = 0.0
    for point, size in enumerate([*BATCH_SIZES, *BATCH_SIZES]):
        nearby = point >= len(BATCH_SIZES)
        start = _nearby(plan) if nearby else plan.initial()
        rows = torch.arange(size) % len(batch)
        worst = max(worst, _compare(plan, model, loss, start, (batch[rows], labels[rows])))
    return worst


def _compare(
    plan: Plan, model: nn.Module, loss: Loss | None, start: np.ndarray, rows: _Rows
) -> float:
    x, y = rows
    reference = copy.deepcopy(model)
    _load(reference, plan, start)
    try:
        scores = _torch_scores(reference, x)
        expected = F.cross_entropy(reference(x), y) if loss is None else loss(reference(x), y)
    except ValueError as error:
        if len(x) == 1 and "more than 1 value" in str(error):
            return 0.0  # torch refuses to normalise a single row; the plan does not
        raise
    expected.backward()  # type: ignore[no-untyped-call]
    session = plan.session()
    session.params[:] = start
    try:
        found = session.step(x.numpy(), y.numpy())
        found_scores = plan.evaluator().scores(start, x.numpy())
    except (DataError, PlanError) as error:
        raise ExportRefused(
            f"the plan does not run on a batch of {len(x)}",
            why=error.why or error.what,
            repair="let the model take batches of any size",
        ) from error
    gradients = {n: p.grad for n, p in reference.named_parameters() if p.requires_grad}
    scale = max(float(g.abs().max()) for g in gradients.values() if g is not None)
    buffers = dict(reference.named_buffers())
    views, got = plan.views(session.params), plan.views(session.grads)
    worst = _check("the loss", len(x), np.float32(found), expected.detach().numpy(), 1.0)
    worst = max(worst, _check("the scores", len(x), found_scores, scores.numpy(), 1.0))
    for name, gradient in gradients.items():
        assert gradient is not None
        what = f"the gradient of {name}"
        worst = max(worst, _check(what, len(x), got[name], gradient.numpy(), 0.1 * scale))
    for tensor in plan.manifest.tensors:
        if tensor.role == "buffer":
            new = buffers[tensor.name].numpy()
            what = f"the buffer {tensor.name}"
            worst = max(worst, _check(what, len(x), views[tensor.name], new, 0.1))
    return worst


def _check(
    what: str, size: int, found: np.ndarray | np.float32, wanted: np.ndarray, floor: float
) -> float:
    if np.shape(found) != wanted.shape:
        error = np.inf
    else:
        difference = np.abs(np.asarray(found, np.float64) - wanted.astype(np.float64))
        scale = max(float(np.abs(wanted).max(initial=0.0)), floor, 1e-30)
        error = float(difference.max(initial=0.0)) / scale
    if not error <= TOLERANCE:
        raise ExportRefused(
            f"{what} is off by {error:.2g} at a batch of {size}",
            why=f"plan and torch must agree within {TOLERANCE:g}",
            repair="report this with the model; a layer of it is traced wrongly",
        )
    return error


def _torch_scores(model: nn.Module, x: Tensor) -> Tensor:
    modes = {module: module.training for module in model.modules()}
    with torch.no_grad():
        scores = model.eval()(x)
    for module, training in modes.items():
        module.training = training
    assert isinstance(scores, Tensor)
    return scores


def _load(model: nn.Module, plan: Plan, flat: np.ndarray) -> None:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name, value in plan.views(flat).items():
            tensors[name].copy_(torch.from_numpy(value))


def _nearby(plan: Plan) -> np.ndarray:
    flat = plan.initial()
    numbers = np.random.default_rng(0)
    for value in plan.views(flat[: plan.n_train]).values():
        size = 0.05 * max(float(np.abs(value).max()), 0.2)
        np.add(value, size * numbers.standard_normal(value.shape), out=value, casting="same_kind")
    return flat


def _varied(batch: Tensor) -> Tensor:
    """An example of zeros or ones would show no error; numbers take its place."""
    if batch.is_floating_point() and float(batch.std()) == 0.0:
        return torch.randn(batch.shape, generator=torch.Generator().manual_seed(0))
    return batch
