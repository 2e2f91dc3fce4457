"""The models, in torch, as all sides train them."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

__all__ = ["NETS", "from_arrays", "to_arrays"]


def mlp() -> nn.Module:
    """A perceptron 43-64-6: 3,206 parameters."""
    return nn.Sequential(nn.Linear(43, 64), nn.ReLU(), nn.Linear(64, 6))


def cnn() -> nn.Module:
    """A convolutional net for MNIST at 14 x 14: 43,082 parameters."""
    return nn.Sequential(
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


NETS = {"mlp": mlp, "cnn": cnn}


def from_arrays(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}


def to_arrays(state: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in state.items()}
