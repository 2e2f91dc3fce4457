"""An open round: its announcement, its cohort, and the sums of what was counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.sdk import algorithms
from kellet.sdk.protocol.body import Body
from kellet.sdk.protocol.messages import Round, announcement_hash
from kellet.sdk.protocol.vectors import Shapes
from kellet.server.cohort import Cohort
from kellet.server.config import FleetConfig
from kellet.server.ledger import UpdateRow
from kellet.server.sums import ExactSum
from kellet.server.verify import Terms

__all__ = ["OpenRound"]


class OpenRound:
    """What a round needs while it is open: 16 bytes a parameter, whatever the cohort."""

    def __init__(
        self,
        message: Round,
        raw: bytes,
        *,
        shapes: Shapes,
        control: NDArray[np.float32] | None,
        config: FleetConfig,
        chosen: frozenset[str] | None,
    ) -> None:
        self.message = message
        self.raw = raw
        self.base = announcement_hash(raw)
        self.number = message.round
        self.total = ExactSum(shapes.n_update)
        self.weight = 0
        self.cohort = Cohort(message.target, config.over_select, chosen)
        self.terms = Terms(
            round=message,
            base=self.base,
            algorithm=algorithms.from_wire(message.algorithm),
            shapes=shapes,
            control=control,
            max_norm=config.max_norm,
        )
        self._opened = 0.0
        self.closes = float("inf")
        self._facts: list[dict[str, Any]] = []

    def published(self, now: float) -> None:
        """The deadline runs from the publication (after a restart, from the next one)."""
        if self.closes == float("inf"):
            self._opened = now
            self.closes = now + self.message.deadline

    def add(self, row: UpdateRow, body: Body) -> None:
        """Add a counted update."""
        assert body.delta_y is not None
        self.total.add(body.delta_y, row.weight)
        self.weight += row.weight
        self.cohort.count(row.device)
        self._facts.append(
            {
                name: row.header[name]
                for name in (
                    "loss",
                    "objective",
                    "drift",
                    "steps",
                    "holdout_samples",
                    "holdout_loss",
                    "holdout_accuracy",
                    "scheme",
                    "delta_y",
                )
            }
        )

    def summary(self, now: float) -> dict[str, Any]:
        """What there is to tell about the round. Losses are means over its devices."""

        def mean(name: str) -> float | None:
            return float(np.mean([f[name] for f in self._facts])) if self._facts else None

        held = [f for f in self._facts if f["holdout_samples"]]

        def held_mean(name: str) -> float | None:
            weights = [f["holdout_samples"] for f in held]
            values = [f[name] for f in held]
            return (
                float(np.average(values, weights=weights)) if held and None not in values else None
            )

        return {
            "counted": list(self.cohort.counted),
            "asked": list(self.cohort.asked),
            "train_loss": mean("loss"),
            "objective": mean("objective"),
            "drift": mean("drift"),
            "drift_max": max((f["drift"] for f in self._facts), default=None),
            "schemes": dict(Counter(f["scheme"] for f in self._facts)),
            "codecs": dict(Counter(f["delta_y"] for f in self._facts)),
            "steps": sum(int(f["steps"]) for f in self._facts),
            "holdout_loss": held_mean("holdout_loss"),
            "holdout_accuracy": held_mean("holdout_accuracy"),
            "seconds": now - self._opened,
        }
