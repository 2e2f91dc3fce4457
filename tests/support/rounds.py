"""An announcement of a round for one device, where a test cares about a few of its fields."""

from __future__ import annotations

from typing import Any

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.plan import Plan
from kellet.sdk.protocol.messages import Blob, Codecs, Round

__all__ = ["round_of"]


def round_of(plan: Plan, algorithm: FedAvg, **changes: Any) -> Round:
    """The first round of ``plan``, of a fleet of one. ``changes``: fields of ``Round``."""
    fields: dict[str, Any] = {
        "round": 1,
        "epoch": 1,
        "plan": Blob(plan.id, plan.size),
        "model": Blob(bytes(32), 4 * plan.n_update),
        "control": None,
        "algorithm": algorithm.wire(),
        "weighting": algorithm.weighting,
        "codecs": Codecs(),
        "members": 1,
        "target": 1,
        "quorum": 1,
        "deadline": 60.0,
        "valid": 60.0,
        "part_size": 1024,
        "seed": 0,
    }
    return Round(**(fields | changes))
