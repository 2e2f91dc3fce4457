"""The server's optimisers once more, one parameter at a time in Python's own floats."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["Moments", "optimised"]

Moments = tuple[str, list[list[float]]]


def optimised(
    fields: dict[str, Any] | None, means: list[float], kept: Moments | None
) -> tuple[list[float], Moments | None]:
    """Each parameter's step, and what the next round goes on from."""
    if fields is None:
        return means, None
    name, lr = fields["name"], fields["server_lr"]
    if kept is None or kept[0] != name:
        start = [0.0] if name == "avgm" else [0.0, fields["tau"] ** 2]
        kept = name, [start for _ in means]
    steps, after = [], []
    for mean, (m, *v) in zip(means, kept[1], strict=True):
        if name == "avgm":
            moments = [fields["server_momentum"] * m + mean]
            steps.append(lr * moments[0])
        else:
            moments = [
                fields["beta1"] * m + (1 - fields["beta1"]) * mean,
                second(fields, v[0], mean),
            ]
            steps.append(lr * moments[0] / (math.sqrt(moments[1]) + fields["tau"]))
        after.append(moments)
    return steps, (name, after)


def second(fields: dict[str, Any], v: float, mean: float) -> float:
    if fields["name"] == "adagrad":
        return v + mean**2
    part = (1 - fields["beta2"]) * mean**2
    if fields["name"] == "adam":
        return float(fields["beta2"] * v + part)
    return v if v == mean**2 else float(v - part if v > mean**2 else v + part)
