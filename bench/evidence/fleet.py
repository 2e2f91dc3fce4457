"""Train a simulated fleet until it is good enough, and say how good it was after each round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from numpy.typing import ArrayLike

from bench.evidence.plans import source
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.plan import Plan
from kellet.server.history import RoundRecord
from kellet.server.simulate import Clients, RoundAbandoned, simulate

__all__ = ["Course", "opened", "trained"]


@dataclass(frozen=True)
class Course:
    """A run. ``accuracies`` of the model on the test set, one a round worked.

    ``stopped``: empty, or why it ended early: "enough" or what went wrong, such as a loss that is
    not finite on all the clients of a round.
    """

    accuracies: list[float]
    stopped: str = ""

    def rounds_to(self, target: float) -> int | None:
        """Return the first round (from 1) whose model is at least that accurate."""
        reached = (i for i, found in enumerate(self.accuracies, 1) if found >= target)
        return next(reached, None)


class _Enough(Exception):
    """The last round's model is as good as was wanted."""


def trained(
    plan: Plan,
    clients: Clients,
    algorithm: FedAvg,
    *,
    rounds: int,
    test: tuple[ArrayLike, ArrayLike],
    enough: float | None = None,
    **options: Any,
) -> Course:
    """Simulate up to ``rounds``, until a model's accuracy is ``enough``; options of `simulate`.

    A fleet that falls apart (no client of a round has finite parameters to send) ends the run.
    """
    accuracies: list[float] = []

    def judge(record: RoundRecord) -> None:
        assert record.accuracy is not None
        accuracies.append(record.accuracy)
        if enough is not None and record.accuracy >= enough:
            raise _Enough

    try:
        simulate(plan, clients, algorithm, rounds=rounds, test=test, on_round=judge, **options)
    except _Enough:
        return Course(accuracies, "enough")
    except RoundAbandoned as error:
        return Course(accuracies, error.why)
    return Course(accuracies)


@cache
def opened(name: str) -> Plan:
    """Return a plan, read and verified once a process."""
    return Plan.open(source(name))
