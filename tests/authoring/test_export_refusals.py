"""What cannot become a plan is refused, with the reason and the repair."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kellet.sdk.authoring import export, onnx_graph, verify
from kellet.sdk.errors import ExportRefused

X, Y = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


def linear() -> nn.Module:
    return nn.Linear(8, 3)


class Calls(nn.Module):
    """Two linear layers and a function that uses them."""

    def __init__(self, function: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.a, self.b = linear(), linear()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.labels = nn.Parameter(torch.ones(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.labels


class Counter(nn.Module):
    """Uses an integer buffer that each step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.out = linear()
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.steps.add_(1)
        return self.out(x) / self.steps


def frozen() -> nn.Module:
    return linear().requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            nn.Sequential(nn.Dropout(0.3), linear()),
            r"the layer '0' \(Dropout\) drops at random with p=0.3.*same gradient.*\.eval\(\)",
        ),
        (nn.Sequential(nn.GRU(8, 3, num_layers=2, dropout=0.2)), r"'0' \(GRU\) drops at random"),
        (Calls(lambda m, x: m.a(F.dropout(x, 0.5)) + m.b(x)), "draws random numbers.*dropout"),
        (Calls(lambda m, x: m.a(x + torch.randn_like(x)) + m.b(x)), "draws random numbers.*randn"),
        (
            Calls(lambda m, x: m.a(x)),
            r"b.weight gets no gradient.*b.weight.requires_grad_\(False\)",
        ),
        (Calls(lambda m, x: m.a(x.reshape(4, 8)) + m.b(x)), "the batch axis is not free.*x.shape"),
        (
            Calls(lambda m, x: m.a(x) * (1 if x.sum() > 0 else 2) + m.b(x)),
            "cannot be traced.*do not depend on the numbers",
        ),
        (Calls(lambda m, x: (m.a(x), m.b(x))), "the model returns a tuple.*scores alone"),
        (Calls(lambda m, x: m.a(x[:, :5])), "does not run on its example"),
        (
            Calls(lambda m, x: torch.linalg.solve(m.a(x).T @ m.b(x), m.a(x).T).T),
            "cannot be written as ONNX|cannot be traced|needs the operator",
        ),
        (linear().half(), r"weight is torch.float16.*model.float\(\)"),
        (linear().double(), "weight is torch.float64"),
        (linear().to("meta"), r"weight is on meta.*model.cpu\(\)"),
        (frozen(), "no parameter to train"),
        (nn.LazyLinear(3), "weight has no shape yet.*run the model once"),
        (Named(), "a tensor is called 'labels'.*rename"),
        (nn.Sequential(nn.BatchNorm1d(8, momentum=None), linear()), "momentum=None.*such as 0.1"),
        (Counter(), "steps is an integer buffer that changes and is used"),
    ],
)
def test_a_model_that_cannot_be_a_plan_is_refused(model: nn.Module, says: str) -> None:
    with pytest.raises(ExportRefused, match=says) as refusal:
        export(model, None, X, Y, name="refused")
    assert refusal.value.why
    assert refusal.value.repair


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda o, y: F.cross_entropy(o, y, reduction="none"), r"the loss is torch.float32 \[4\]"),
        (lambda o, y: 1.0, "the loss is float"),
        (lambda o, y: o.sum().double(), r"the loss is torch.float64 \[\]"),
        (lambda o, y: o.detach().mean(), "the loss has no gradient"),
        (lambda o, y: o @ y, "the loss does not run on the example"),
    ],
)
def test_a_loss_that_is_no_mean_is_refused(
    loss: Callable[[Tensor, Tensor], Tensor], says: str
) -> None:
    with pytest.raises(ExportRefused, match=says):
        export(linear(), loss, X, Y, name="refused")


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (X[:1], Y[:1], r"the example batch is \[1, 8\].*two rows"),
        (X.double(), Y, "the example batch is torch.float64"),
        (X, Y.int(), "the example labels is torch.int32"),
        (X, Y + 5, "the loss does not run on the example"),
    ],
)
def test_an_example_that_does_not_serve_is_refused(x: Tensor, y: Tensor, says: str) -> None:
    with pytest.raises(ExportRefused, match=says):
        export(linear(), None, x, y, name="refused")


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(scores * self.temperature, labels)


def test_a_loss_that_learns_is_refused() -> None:
    with pytest.raises(ExportRefused, match=r"the loss has parameters.*into the model"):
        export(linear(), OwnLoss(), X, Y, name="refused")


def test_names_and_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ExportRefused, match=r"3 scores a row for 4 classes"):
        export(linear(), None, X, Y, name="refused", classes=4)
    odd = nn.ParameterDict({"a b": nn.Parameter(torch.ones(8, 3))})
    with pytest.raises(ExportRefused, match=r"a tensor is called 'a b'.*rename"):
        export(odd, None, X, Y, name="refused")


def test_cross_entropy_of_many_labels_a_row_is_refused() -> None:
    model = nn.Sequential(linear(), nn.Unflatten(1, (3, 1)))
    says = r"scores \[4, 3, 1\] and labels \[4, 1\].*a loss of your own"
    with pytest.raises(ExportRefused, match=says):
        export(model, None, X, Y[:, None], name="refused")


@pytest.mark.parametrize(
    "layer", [nn.MaxPool1d(3, ceil_mode=True), nn.MaxPool2d(2, ceil_mode=True)]
)
def test_pooling_over_the_edge_is_refused(layer: nn.Module) -> None:
    shape = (4, 2, 8) if isinstance(layer, nn.MaxPool1d) else (4, 2, 7, 7)
    conv = nn.Conv1d(2, 2, 1) if len(shape) == 3 else nn.Conv2d(2, 2, 1)
    model = nn.Sequential(conv, layer, nn.Flatten(), nn.LazyLinear(3))
    x = torch.randn(shape)
    model(x)
    with pytest.raises(ExportRefused, match=r"ceil_mode=True"):
        export(model, None, x, Y, name="refused")


# ---- the last lines of defence, with a fault put in on purpose


def test_a_gradient_that_is_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decomposition that is wrong by one part in ten thousand."""
    from kellet.sdk.authoring import decompositions

    def wrong(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
        return grad * (x > threshold).to(grad.dtype) * 1.0001

    monkeypatch.setattr(decompositions, "_threshold_backward", wrong)
    model = nn.Sequential(linear(), nn.ReLU(), nn.Linear(3, 3))
    with pytest.raises(ExportRefused, match=r"the gradient of 0\.\w+ is off by .* at a batch of"):
        export(model, None, X, Y, name="refused")


def test_a_lost_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the naive joint export does: outputs vanish, and success is reported."""
    real = torch.onnx.export

    def losing(*args: object, **options: object) -> object:
        program = real(*args, **options)  # type: ignore[arg-type]
        assert program is not None
        del program.model.graph.outputs[1:]
        return program

    monkeypatch.setattr(torch.onnx, "export", losing)
    with pytest.raises(ExportRefused, match=r"the exporter lost some"):
        export(linear(), None, X, Y, name="refused")


def test_an_operator_off_the_list_is_refused() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    node = ir.node("Bernoulli", [x])
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 18})
    with pytest.raises(ExportRefused, match=r"needs the operator Bernoulli.*1.20"):
        onnx_graph._check_operators(graph)


def test_the_tolerance_is_the_contracts() -> None:
    assert verify.TOLERANCE == 1e-5
    assert len(set(verify.BATCH_SIZES)) == 3


def test_without_torch_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from kellet.sdk import authoring\n"
        "try: authoring.export\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "ExtraMissing this needs the package 'torch'" in done.stdout
    assert 'pip install "kellet[authoring]"' in done.stdout
