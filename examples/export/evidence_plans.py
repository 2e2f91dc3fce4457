"""Plans that the evidence is made with, and that do not ship.

    python examples/export/evidence_plans.py DIRECTORY

Each function returns what `kellet plan export MODULE:FUNCTION` asks for. The
examples are drawn from a seed, so no data set is needed to make a plan.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kellet.sdk.authoring import export
from kellet.sdk.plan import Plan

SEED = 20240
Example = tuple[nn.Module, Callable[[Tensor, Tensor], Tensor] | None, Tensor, Tensor]


def mnist() -> Example:
    """A convolutional net on MNIST at 14 x 14: 43,082 parameters, most in one linear layer."""
    torch.manual_seed(SEED)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 3 * 3, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    return model, None, *_drawn(1, 14, 14)


def five_million() -> Example:
    """A perceptron of 5,012,490 parameters in six layers, for memory and time."""
    torch.manual_seed(SEED)
    widths = (784, 1024, 1024, 1024, 1024, 1024)
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10)), None, *_drawn(784)


def mnist_logistic() -> Example:
    """Logistic regression on MNIST at 14 x 14, from zero."""
    linear = nn.Linear(196, 10)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.Flatten(), linear), None, *_drawn(1, 14, 14)


def mnist_mlp() -> Example:
    """A perceptron 196-64-10 on MNIST at 14 x 14."""
    torch.manual_seed(SEED)
    layers = nn.Linear(196, 64), nn.ReLU(), nn.Linear(64, 10)
    return nn.Sequential(nn.Flatten(), *layers), None, *_drawn(1, 14, 14)


def quadratic() -> Example:
    """Half the mean of (x w - y)^2: a quadratic in one parameter w, which starts at 1."""
    linear = nn.Linear(1, 1, bias=False)
    nn.init.ones_(linear.weight)
    x = torch.tensor([[2.0], [1.0], [1.0], [0.0]])
    return linear, _half_squares, x, -torch.ones(4, 1)


def fraud_logistic() -> Example:
    """Logistic regression on the 15 features of a card transaction, from zero."""
    return _logistic(15, 2)


def fraud_mlp() -> Example:
    """A perceptron 15-32-2 on them."""
    return _perceptron(15, 32, 2)


def annthyroid_logistic() -> Example:
    """Logistic regression on 21 features of a person, from zero."""
    return _logistic(21, 2)


def annthyroid_mlp() -> Example:
    """A perceptron 21-32-2 on them."""
    return _perceptron(21, 32, 2)


def synthetic_logistic() -> Example:
    """Logistic regression on the FedProx paper's synthetic data, from zero."""
    return _logistic(60, 10)


def next_character() -> Example:
    """The next of 64 characters from the last 16: an embedding, and a perceptron 256-128-64."""
    model = nn.Sequential(
        nn.Embedding(64, 16),
        nn.Flatten(),
        nn.Linear(16 * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
    )
    return model, None, torch.randint(0, 64, (10, 16)), torch.arange(10)


def _logistic(inputs: int, classes: int) -> Example:
    linear = nn.Linear(inputs, classes)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear, None, torch.randn(10, inputs), torch.arange(10) % classes


def _perceptron(*widths: int) -> Example:
    inputs, hidden, classes = widths
    model = nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    return model, None, torch.randn(10, inputs), torch.arange(10) % classes


def _half_squares(outputs: Tensor, labels: Tensor) -> Tensor:
    return 0.5 * F.mse_loss(outputs, labels)


def _drawn(*shape: int) -> tuple[Tensor, Tensor]:
    """Ten examples of mean 0 and deviation 1, one of each class."""
    return torch.randn(10, *shape), torch.arange(10)


DIGITS = {"label_names": [str(digit) for digit in range(10)], "unit": "standard deviations"}
FRAUD = {"label_names": ["genuine", "fraud"], "unit": "standard deviations"}
THYROID = {"label_names": ["normal", "diseased"], "unit": "standard deviations"}
CHARACTERS = {"unit": "a character's place in the alphabet", "low": 0, "high": 63}
PIXELS = {**DIGITS, "unit": "brightness, from 0 to 1"}

# A plan, and what its input and labels mean.
EXAMPLES: dict[str, tuple[Callable[[], Example], dict[str, Any]]] = {
    "mnist": (mnist, DIGITS),
    "five_million": (five_million, DIGITS),
    "mnist_logistic": (mnist_logistic, PIXELS),
    "mnist_mlp": (mnist_mlp, PIXELS),
    "quadratic": (quadratic, {}),
    "fraud_logistic": (fraud_logistic, FRAUD),
    "fraud_mlp": (fraud_mlp, FRAUD),
    "annthyroid_logistic": (annthyroid_logistic, THYROID),
    "annthyroid_mlp": (annthyroid_mlp, THYROID),
    "synthetic_logistic": (synthetic_logistic, DIGITS),
    "next_character": (next_character, CHARACTERS),
}


def example(name: str) -> Example:
    """The model ``name``, its loss, and a batch."""
    return EXAMPLES[name][0]()


def make(name: str) -> Plan:
    """Export the plan ``name``: the same bytes each time."""
    torch.manual_seed(SEED)
    return export(
        *example(name),
        name=name,
        **EXAMPLES[name][1],
        licence="Apache-2.0",
        author="The Kellet authors",
    )


def main(directory: str) -> None:
    for name in EXAMPLES:
        plan = make(name)
        path = Path(directory) / f"{name}.kplan"
        path.write_bytes(plan.raw)
        print(path, len(plan.raw), "bytes", plan)


if __name__ == "__main__":
    main(*sys.argv[1:])
