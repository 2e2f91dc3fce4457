"""One simulated run, measured round by round."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.errors import require
from kellet.server.optimizers import ServerOptimizer
from kellet.server.research.data import Population
from kellet.server.research.judging import Gradients, Judge, Judged, leash
from kellet.server.selection import feature_bins
from kellet.server.simulate import simulate

if TYPE_CHECKING:
    from kellet.sdk.plan import Plan
    from kellet.server.history import History, RoundRecord

__all__ = ["Measured", "Measures", "run"]

F32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Measures:
    """What is measured. Raises ``UsageError`` for what cannot be.

    ``judge_every``: rounds from one judgement to the next; the last round is always
    judged, and 0 judges that alone. ``target``: the test accuracy to be reached, or None.
    """

    judge_every: int = 1
    target: float | None = None

    def __post_init__(self) -> None:
        require(self.judge_every >= 0, "judge_every", self.judge_every, "at least 0")
        target = self.target
        require(target is None or 0 < target <= 1, "target_accuracy", target, "above 0, at most 1")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A round: what the server recorded, what the model was worth, and how far it could drift.

    ``record`` has the test's loss and accuracy, where the round was judged. ``gradient`` is G of
    `Gradients` and ``drift_bound`` G / mu, both None unless `leash` applies and the round was
    judged. ``wall_seconds`` is the round without its judging.
    """

    record: RoundRecord
    judged: Judged
    gradient: float | None
    drift_bound: float | None
    wall_seconds: float


@dataclass
class _Watch:
    """Judges models as they come."""

    plan: Plan
    population: Population
    algorithm: FedAvg
    scheme: str
    rounds: int
    measures: Measures
    on_round: Callable[[Measured], None]
    measured: list[Measured] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._judge = Judge(self.plan, self.population)
        self._mu = leash(self.algorithm, self.scheme)
        self._gradients = None
        if self._mu is not None:
            self._gradients = Gradients(self.plan, self.population.clients, self.algorithm)
            self._before = self.plan.initial()
        self._since = time.perf_counter()

    def see(self, record: RoundRecord, model: F32) -> None:
        took = time.perf_counter() - self._since
        judged, gradient = Judged(), None
        every = self.measures.judge_every
        if record.round == self.rounds or (every and record.round % every == 0):
            judged = self._judge(model)
            if self._gradients is not None:
                gradient = self._gradients.largest(self._before, record.counted)
        if self._gradients is not None:
            self._before[:] = model
        measured = Measured(
            record=dataclasses.replace(record, loss=judged.loss, accuracy=judged.accuracy),
            judged=judged,
            gradient=gradient,
            drift_bound=gradient / self._mu if gradient is not None and self._mu else None,
            wall_seconds=round(took, 6),
        )
        self.measured.append(measured)
        self.on_round(measured)
        self._since = time.perf_counter()


def run(
    plan: Plan,
    population: Population,
    algorithm: FedAvg,
    *,
    optimizer: ServerOptimizer | None = None,
    rounds: int = 10,
    seed: int = 0,
    measures: Measures | None = None,
    on_round: Callable[[Measured], None] = lambda _measured: None,
    scheme: str = "f32",
    **options: Any,
) -> tuple[History, list[Measured]]:
    """Simulate one run, and measure each round; its history, and the rounds.

    ``options`` are those of `kellet.server.simulate` that say how clients are asked and how
    vectors travel, or what computes them. Measuring never touches the run: its model is that of
    ``simulate`` with the same arguments. The history's rounds have loss and accuracy
    where they were judged. Raises what ``simulate`` does.
    """
    bins = options.pop("feature_bins", 0)
    if bins:
        samples = population.test[0] if population.test is not None else None
        features = feature_bins(plan.manifest, bins, samples)
        options["cohort"] = dataclasses.replace(options["cohort"], features=features)
    plan.variant_graph(scheme)  # which refuses what is not there
    if options.get("personal") and population.held_out:
        options["holdout"] = population.judged
    watch = _Watch(plan, population, algorithm, scheme, rounds, measures or Measures(), on_round)
    history = simulate(
        plan,
        population.clients,
        algorithm,
        server_optimizer=optimizer,
        rounds=rounds,
        seed=seed,
        scheme=scheme,
        on_model=watch.see,
        **options,
    )
    records = [measured.record for measured in watch.measured]
    return dataclasses.replace(history, rounds=records), watch.measured
