"""What devices say of models on their own hold-outs, over the devices of a round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kellet.server.metrics import worst_decile

__all__ = ["HEADER", "held_out"]

# Of an update's header; the last two are absent where a device says nothing of its own model.
HEADER = (
    "holdout_samples",
    "holdout_loss",
    "holdout_accuracy",
    "personal_loss",
    "personal_accuracy",
)

Facts = Mapping[str, Any]


def held_out(headers: Sequence[Facts]) -> dict[str, float | None]:
    """The means, weighted by held-out samples, and the accuracy of the worst tenth of devices.

    ``holdout``: of the received model; ``personal``: of the devices' own, over those that have
    one, and only where there are such. None where nobody measures it.
    """
    held = [header for header in headers if header["holdout_samples"]]
    facts = _of("holdout", held)
    own = [header for header in held if "personal_loss" in header]
    return facts | _of("personal", own) if own else facts


def _of(model: str, held: Sequence[Facts]) -> dict[str, float | None]:
    accuracies = [header[f"{model}_accuracy"] for header in held]
    known = bool(held) and all(a is not None and math.isfinite(a) for a in accuracies)
    return {
        f"{model}_loss": _mean(held, f"{model}_loss"),
        f"{model}_accuracy": _mean(held, f"{model}_accuracy"),
        f"{model}_accuracy_worst": worst_decile(accuracies) if known else None,
    }


def _mean(held: Sequence[Facts], name: str) -> float | None:
    values = [header[name] for header in held]
    if not held or None in values:
        return None
    return float(np.average(values, weights=[header["holdout_samples"] for header in held]))
