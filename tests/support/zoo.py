"""Nine models that between them use what people put on devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ZOO", "Entry"]


@dataclass(frozen=True)
class Entry:
    """A model, how to draw a batch for it, and its number of classes."""

    make: Callable[[], nn.Module]
    draw: Callable[[int], Tensor]
    classes: int
    low: float | None = None
    high: float | None = None

    def example(self, rows: int = 8, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
        torch.manual_seed(seed)
        return self.make(), self.draw(rows), torch.randint(0, self.classes, (rows,))


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 10)
    )


def group_norm_net() -> nn.Module:
    """Convolutions, group norm, average pooling."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 49, 10),
    )


def depthwise_net() -> nn.Module:
    """Stride, groups, pointwise, overlapping and plain max pooling, bounded activations."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(4, 16),
        nn.ReLU6(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
        nn.Conv2d(16, 32, 1),
        nn.Hardswish(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, groups=4),
        nn.MaxPool2d(3, stride=1, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def signal_net() -> nn.Module:
    """1-d convolutions over nine motion signals."""
    return nn.Sequential(
        nn.Conv1d(9, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(32, 32, 5, padding=2, stride=2),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Dropout(0.0),
        nn.Linear(32, 6),
    )


def batch_norm_net() -> nn.Module:
    """Batch norm, whose running statistics a step updates."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 196, 10),
    )


class Gru(nn.Module):
    """torch's own recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(9, 32, batch_first=True)
        self.out = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cell(x)
        return self.out(states[:, -1])


class HandMadeGru(nn.Module):
    """A recurrent cell written as a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.of_x, self.of_h = nn.Linear(9, 96), nn.Linear(32, 96)
        self.out = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 32)
        inputs = self.of_x(x)
        for t in range(x.shape[1]):
            reset, update, new = inputs[:, t].chunk(3, 1)
            old_reset, old_update, old_new = self.of_h(h).chunk(3, 1)
            keep = torch.sigmoid(update + old_update)
            fresh = torch.tanh(new + torch.sigmoid(reset + old_reset) * old_new)
            h = (1 - keep) * fresh + keep * h
        return self.out(h)


class Transformer(nn.Module):
    """One block: layer norm, attention, GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(9, 32)
        self.norm_1, self.norm_2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.mix = nn.Linear(32, 96), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.out = nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        rows, steps, width = x.shape
        heads = [
            part.reshape(rows, steps, 4, width // 4).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, -1)
        ]
        seen = F.scaled_dot_product_attention(*heads).transpose(1, 2)
        x = x + self.mix(seen.reshape(rows, steps, width))
        x = x + self.mlp(self.norm_2(x))
        return self.out(x.mean(1))


class BagOfWords(nn.Module):
    """An embedding of integer tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(200, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x).mean(1))


def _images(rows: int) -> Tensor:
    return torch.randn(rows, 1, 28, 28)


def _steps(rows: int) -> Tensor:
    return torch.randn(rows, 16, 9)


ZOO = {
    "perceptron": Entry(perceptron, lambda rows: torch.randn(rows, 64), 10),
    "group_norm": Entry(group_norm_net, _images, 10),
    "depthwise": Entry(depthwise_net, _images, 10),
    "signal": Entry(signal_net, lambda rows: torch.randn(rows, 9, 128), 6),
    "batch_norm": Entry(batch_norm_net, _images, 10),
    "gru": Entry(Gru, _steps, 6),
    "hand_made_gru": Entry(HandMadeGru, _steps, 6),
    "transformer": Entry(Transformer, _steps, 6),
    "embedding": Entry(
        BagOfWords, lambda rows: torch.randint(0, 200, (rows, 12)), 4, low=0, high=199
    ),
}
