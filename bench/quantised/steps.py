"""Time a device's SCAFFOLD steps: ``python -m bench.quantised.steps PLAN SCHEME SECONDS``.

Prints one JSON object: microseconds a step (median), and how many steps were timed. A step is
the gradient of a batch and the update, on the session and the local model that a device uses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

from bench.quantised.samples import SAMPLES, of_shape
from kellet import kernels
from kellet.sdk.algorithms import Scaffold
from kellet.sdk.controls import Controls
from kellet.sdk.plan import Plan
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.trainer import begin

__all__ = ["BATCH", "RATE", "main", "timed"]

BATCH, RATE = 32, 1e-3
LEAST = 20  # steps


def main(source: str, scheme: str, seconds: str) -> None:
    """Print what a step takes."""
    plan = Plan.open(source)
    classes = plan.manifest.labels.classes
    assert classes is not None
    x, y = of_shape(list(plan.manifest.input.shape), classes)
    shapes = Shapes.of(plan.manifest.tensors)
    rng = np.random.default_rng(1)
    c, c_i = (0.01 * rng.standard_normal((2, plan.n_train))).astype(np.float32)
    algorithm = Scaffold(local_lr=RATE, local_steps=1, batch_size=BATCH)
    model = begin(
        plan.session(scheme),
        algorithm,
        plan.initial(),
        shapes=shapes,
        controls=Controls(c, kernels.to_grid(c_i)),
        seed=0,
        device="bench",
        round_=1,
        local=plan.local,
    )

    def step(part: slice) -> None:
        model.gradient(x[part], y[part])
        model.step(algorithm.rate(0))

    print(json.dumps(timed(step, float(seconds))))


def timed(step: Callable[[slice], None], seconds: float) -> dict[str, float]:
    """Call ``step`` with one batch after another; what the median took, in microseconds."""
    parts = [slice(start, start + BATCH) for start in range(0, SAMPLES, BATCH)]
    for part in parts[:5]:
        step(part)
    took: list[float] = []
    until = perf_counter() + seconds
    while len(took) < LEAST or perf_counter() < until:
        part = parts[len(took) % len(parts)]
        began = perf_counter()
        step(part)
        took.append(perf_counter() - began)
    return {"microseconds": 1e6 * median(took), "steps": len(took)}


if __name__ == "__main__":
    main(*sys.argv[1:])
