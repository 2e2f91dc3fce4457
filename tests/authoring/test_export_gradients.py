"""Plans against torch: each gradient, buffer and score, at three batch sizes.

The exporter makes the same comparison before it hands out a plan. Here it is
made again from outside it, with other data, from float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.zoo import ZOO
from torch import Tensor, nn
from torch.nn import functional as F

from kellet.sdk.authoring import export
from kellet.sdk.plan import Plan

QUICK = ["perceptron", "batch_norm", "signal"]
SLOW = [name for name in ZOO if name not in QUICK]


def compare(
    plan: Plan, model: nn.Module, x: Tensor, y: Tensor, loss: Callable[..., Tensor]
) -> float:
    """The largest error of any gradient, relative to the largest gradient."""
    model = copy.deepcopy(model).double()
    wide = x.double() if x.is_floating_point() else x
    expected = loss(model(wide), y)
    expected.backward()
    session = plan.session()
    assert session.step(x.numpy(), y.numpy()) == pytest.approx(expected.item(), rel=1e-5)
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert set(plan.views(session.grads)) == set(gradients)
    scale = max(float(g.abs().max()) for g in gradients.values())
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            new = plan.views(session.params)[name]
            assert np.abs(new - buffer.numpy()).max() <= 1e-5
    return max(
        float(np.abs(found - gradients[name].numpy()).max()) / scale
        for name, found in plan.views(session.grads).items()
    )


def check(name: str) -> None:
    entry = ZOO[name]
    model, x, y = entry.example()
    plan = export(model, None, x, y, name=name, low=entry.low, high=entry.high)
    for rows in (2, 5, 32):
        _, other_x, other_y = entry.example(rows, seed=rows)
        assert compare(plan, model, other_x, other_y, F.cross_entropy) <= 1e-5
    assert plan.self_test().gradient_error == 0.0
    assert 0 < plan.manifest.memory[1] < plan.manifest.memory[32]
    assert plan.schemes[:2] == ("f32/1", "w8.row/1")
    for variant in plan.manifest.variants:
        plan.self_test(variant.scheme)
        assert 0 < variant.memory[1] < variant.memory[32]


@pytest.mark.parametrize("name", QUICK)
def test_a_model_matches_torch(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SLOW)
def test_a_larger_model_matches_torch(name: str) -> None:
    check(name)


def mean_squares(scores: Tensor, labels: Tensor) -> Tensor:
    return ((scores - labels) ** 2).mean()


def test_a_custom_loss_of_several_numbers_matches_torch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    plan = export(model, mean_squares, torch.randn(4, 4), torch.randn(4, 2), name="regression")
    assert plan.manifest.loss == "custom"
    assert (plan.manifest.labels.dtype, plan.manifest.labels.shape) == ("float32", (2,))
    x, y = torch.randn(7, 4), torch.randn(7, 2)
    assert compare(plan, model, x, y, mean_squares) <= 1e-5
    found = plan.evaluator().evaluate(plan.initial(), x.numpy(), y.numpy())
    assert found.loss == pytest.approx(mean_squares(model(x), y).item(), rel=1e-5)
    assert found.accuracy is None


def test_a_custom_loss_of_classes_has_an_accuracy() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1)
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    plan = export(model, loss, x, y, name="smooth", classes=3)
    assert plan.manifest.loss == "custom"
    assert compare(plan, model, x, y, copy.deepcopy(loss).double()) <= 1e-5
    found = plan.evaluator().evaluate(plan.initial(), x.numpy(), y.numpy())
    assert found.accuracy == int((model(x).argmax(1) == y).sum()) / 9
    assert found.loss == pytest.approx(loss(model(x), y).item(), rel=1e-5)
    assert [tensor.name for tensor in plan.manifest.tensors] == ["weight", "bias"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "layers",
    [
        [nn.ConvTranspose1d(3, 4, 4, stride=2, padding=1), nn.ReLU(), nn.Flatten()],
        [nn.Conv1d(3, 6, 3, dilation=2, stride=2), nn.LeakyReLU(), nn.Flatten()],
        [nn.Conv1d(3, 6, 4, stride=3), nn.ELU(), nn.AdaptiveAvgPool1d(2), nn.Flatten()],
        [nn.Conv1d(3, 6, 3), nn.Mish(), nn.AvgPool1d(3, stride=2, padding=1), nn.Flatten()],
        [
            nn.Conv1d(3, 6, 3),
            nn.AvgPool1d(4, stride=3, padding=2, count_include_pad=False),
            nn.Flatten(),
        ],
        [nn.Conv1d(3, 6, 3), nn.Softplus(), nn.AdaptiveAvgPool1d(4), nn.Flatten()],
        [nn.Flatten(), nn.Linear(48, 8), nn.BatchNorm1d(8), nn.Sigmoid()],
        [nn.InstanceNorm1d(3, affine=True), nn.Flatten(), nn.Hardtanh()],
    ],
    ids=lambda layers: type(layers[0]).__name__ + "_" + type(layers[-2]).__name__,
)
def test_other_layers_match_torch(layers: list[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*layers, nn.LazyLinear(3))
    x, y = torch.randn(6, 3, 16), torch.randint(0, 3, (6,))
    model(x)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
    plan = export(model, None, x, y, name="layers")
    assert compare(plan, model, torch.randn(5, 3, 16), y[:5], F.cross_entropy) <= 1e-5


def test_a_single_row_leaves_running_statistics_finite() -> None:
    """torch refuses to normalise one row; a device's last batch may be that short."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    plan = export(model, None, torch.randn(4, 4), torch.tensor([0, 1, 0, 1]), name="row")
    session = plan.session()
    assert np.isfinite(session.step(np.ones((1, 4), np.float32), np.array([1])))
    assert np.isfinite(session.params).all()
    assert np.isfinite(session.grads).all()
    assert plan.views(session.params)["1.running_var"].tolist() == pytest.approx([0.9] * 3)


def test_the_same_model_gives_the_same_file_without_paths_of_the_author() -> None:
    model, x, y = ZOO["perceptron"].example()
    one = export(model, None, x, y, name="same")
    assert export(model, None, x, y, name="same").raw == one.raw
    assert b"site-packages" not in one.raw
    assert b".py" not in one.raw
