"""Between a device's machine and its driver: the work that is asked for, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from kellet.sdk.outgoing import Announced
from kellet.sdk.personal.turn import Turn
from kellet.sdk.protocol.histograms import Question
from kellet.sdk.trainer import Holdout, Outcome

__all__ = ["Describe", "Described", "Leave", "StartTraining", "Trained", "TrainingStopped"]


@dataclass(frozen=True, slots=True)
class StartTraining:
    """Effect: train on ``announced`` for at most ``seconds``; answer with the same base."""

    announced: Announced
    seconds: float


@dataclass(frozen=True, slots=True)
class Trained:
    """Event: training for ``base`` came to ``outcome``, and the device's own model to ``turn``.

    ``holdout``: the received model on the device's hold-out.
    """

    base: bytes
    outcome: Outcome
    holdout: Holdout | None = None
    turn: Turn | None = None

    @property
    def facts(self) -> dict[str, object]:
        """What there is to tell about it."""
        outcome = self.outcome
        stopped = {"stopped": outcome.stopped} if outcome.stopped else {}
        facts = {"steps": outcome.steps, "loss": outcome.loss, "drift": outcome.drift}
        own = self.turn.facts if self.turn else {}
        return {**facts, **stopped, "scheme": outcome.scheme, **own}


@dataclass(frozen=True, slots=True)
class TrainingStopped:
    """Event: training for ``base`` gave nothing to send."""

    base: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Describe:
    """Effect: count this device's samples; answer with ``Described``."""

    question: Question


@dataclass(frozen=True, slots=True)
class Described:
    """Event: the counts of ``question``'s bins, and a digest of the samples that were counted."""

    question: Question
    samples: bytes
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Leave:
    """Event: take this device out of the fleet, its control out of C."""
