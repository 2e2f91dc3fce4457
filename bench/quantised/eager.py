"""The same steps in eager PyTorch: ``python -m bench.quantised.eager NAME SECONDS``.

Prints one JSON object: microseconds a step (median), and the process's peak memory. One thread.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from bench.evidence.export import builder
from bench.quantised.samples import of_shape
from bench.quantised.steps import RATE, timed
from kellet.sdk.health import peak_mb

__all__ = ["main"]


def main(name: str, seconds: str) -> None:
    """Print what a step takes."""
    torch.set_num_threads(1)
    module, _, example, labels = builder(name).example(name)
    x, y = map(torch.from_numpy, of_shape(list(example.shape[1:]), int(labels.max()) + 1))
    loss = torch.nn.CrossEntropyLoss()
    shifts = [0.01 * torch.randn_like(p) for p in module.parameters()]

    def step(part: slice) -> None:
        module.zero_grad()
        loss(module(x[part]), y[part]).backward()
        _scaffold(module, shifts)

    found = timed(step, float(seconds))
    print(json.dumps({**found, "peak_mb": peak_mb()}))


@torch.no_grad()
def _scaffold(module: Any, shifts: list[torch.Tensor]) -> None:
    for p, d in zip(module.parameters(), shifts, strict=True):
        p.add_(p.grad + d, alpha=-RATE)


if __name__ == "__main__":
    main(*sys.argv[1:])
