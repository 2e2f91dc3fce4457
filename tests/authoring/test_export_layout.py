"""What becomes of parameters, buffers and frozen tensors."""

from __future__ import annotations

import numpy as np
import torch
from support.zoo import ZOO
from torch import Tensor, nn

from kellet.sdk.authoring import export
from kellet.sdk.plan import Plan
from kellet.sdk.plan.onnx_wire import inspect_graph


def roles(plan: Plan) -> dict[str, str]:
    return {tensor.name: tensor.role for tensor in plan.manifest.tensors}


def labels(rows: int) -> Tensor:
    return torch.arange(rows) % 2


def net(norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), norm, nn.ReLU(), nn.Linear(4, 2))


def test_running_statistics_are_buffers_between_train_and_frozen() -> None:
    model = net(nn.BatchNorm1d(4))
    model[0].requires_grad_(False)
    plan = export(model, None, torch.randn(6, 3), labels(6), name="n", statistics="local")
    assert roles(plan) == {
        "1.weight": "train",
        "1.bias": "train",
        "3.weight": "train",
        "3.bias": "train",
        "1.running_mean": "buffer",
        "1.running_var": "buffer",
        "0.weight": "frozen",
        "0.bias": "frozen",
    }
    assert (plan.n_train, plan.n_update, plan.n_params) == (18, 26, 42)
    aggregates = {t.role: t.aggregate for t in plan.manifest.tensors}
    assert aggregates == {"train": "mean", "buffer": "local", "frozen": "mean"}
    for name, value in plan.views(plan.initial()).items():
        assert np.array_equal(value, model.state_dict()[name].numpy())


def test_a_step_moves_running_statistics_as_torch_does() -> None:
    model = net(nn.BatchNorm1d(4))
    plan = export(model, None, torch.randn(6, 3), labels(6), name="n")
    session = plan.session()
    for rows in (5, 2, 9):
        x = torch.randn(rows, 3)
        session.step(x.numpy(), labels(rows).numpy())
        model(x)
    views = plan.views(session.params)
    for name in ("running_mean", "running_var"):
        wanted = getattr(model[1], name).numpy()
        assert np.abs(views[f"1.{name}"] - wanted).max() <= 1e-6
    # Evaluation uses them.
    x = torch.randn(4, 3)
    wanted = model.eval()(x).detach().numpy()
    assert np.abs(plan.evaluator().scores(session.params, x.numpy()) - wanted).max() <= 1e-5


def test_a_batch_norm_in_evaluation_keeps_its_statistics() -> None:
    plan = export(net(nn.BatchNorm1d(4).eval()), None, torch.randn(6, 3), labels(6), name="n")
    assert roles(plan)["1.running_mean"] == "frozen"
    assert plan.n_update == plan.n_train


def test_frozen_layers_prune_the_backward_pass() -> None:
    model, x, y = ZOO["perceptron"].example()
    whole = export(model, None, x, y, name="whole")
    for layer in (model[0], model[2]):
        layer.requires_grad_(False)
    frozen = export(model, None, x, y, name="frozen")
    assert frozen.n_train == 48 * 10 + 10
    assert frozen.n_params == whole.n_params
    assert len(frozen.step_graph) < 0.6 * len(whole.step_graph)
    assert frozen.manifest.memory[32] < whole.manifest.memory[32]
    outputs = inspect_graph(frozen.step_graph).outputs
    assert outputs == ("loss", "grad::4.weight", "grad::4.bias")


class WithBuffers(nn.Module):
    """Float: a table, a constant that is not saved, one unused, one that changes.
    Integer: a constant, and a counter that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.register_buffer("table", torch.arange(3.0))
        self.register_buffer("secret", torch.ones(3), persistent=False)
        self.register_buffer("unused", torch.ones(5))
        self.register_buffer("order", torch.tensor([2, 0, 1]))
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("level", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps.add_(1)
            self.level.mul_(0.5).add_(x.mean(0).detach())
        return self.out(x[:, self.order] * self.table + self.secret - self.level)


def test_only_float_buffers_that_are_used_travel() -> None:
    torch.manual_seed(0)
    model = WithBuffers()
    plan = export(model, None, torch.randn(4, 3), labels(4), name="n")
    assert roles(plan) == {
        "out.weight": "train",
        "out.bias": "train",
        "level": "buffer",
        "table": "frozen",
    }
    session = plan.session()
    for x in (torch.ones(2, 3), torch.ones(5, 3)):
        session.step(x.numpy(), labels(len(x)).numpy())
    assert plan.views(session.params)["level"].tolist() == [1.5, 1.5, 1.5]
    assert plan.views(session.params)["table"].tolist() == [0, 1, 2]


def test_tied_weights_are_one_tensor() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    x, y = torch.randn(4, 3), torch.arange(4) % 3
    plan = export(model, None, x, y, name="tied")
    assert list(roles(plan)) == ["0.weight", "0.bias", "2.bias"]
    assert plan.n_train == 9 + 6
    session = plan.session()
    session.step(x.numpy(), y.numpy())
    nn.functional.cross_entropy(model(x), y).backward()
    both = plan.views(session.grads)["0.weight"] - model[0].weight.grad.numpy()
    assert np.abs(both).max() <= 1e-6
