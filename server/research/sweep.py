"""Many runs over settings and seeds, in one or several processes, kept as they end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike, NDArray

from kellet.sdk import personal
from kellet.sdk.errors import require
from kellet.sdk.plan import Plan
from kellet.server import schedules
from kellet.server.config import FleetConfig
from kellet.server.partition import clients_of
from kellet.server.research.data import Pool, Population, Source
from kellet.server.research.names import Axes, text
from kellet.server.research.one import Measured, Measures, run
from kellet.server.research.parallel import work_and_tell
from kellet.server.research.partitions import Partition, parse
from kellet.server.research.results import Results
from kellet.server.research.rows import RoundRow, RunRow
from kellet.server.research.settings import Cell, cells
from kellet.server.research.table import Line, own_models, run_row, summarised
from kellet.server.simulate import RoundAbandoned

__all__ = ["Experiment", "Sweep", "partitioned", "round_row", "sweep"]

FORMAT = 1
MB = 1e6


@dataclass(frozen=True)
class Sweep:
    """What a sweep came to: its runs, in the order of its cells, and their rounds."""

    configuration: dict[str, Any]
    runs: list[RunRow]
    rounds: list[RoundRow]

    def table(self) -> list[Line]:
        """A line for all runs that differ by the seed alone."""
        return summarised(self.runs)


@dataclass
class Experiment:
    """What all runs of a sweep share. It is pickled once for each process that works them."""

    plan: Plan
    source: Source
    rounds: int
    holdout: float
    measures: Measures
    execution: dict[str, Any]  # what computes a run, and does not change it
    _kept: tuple[object, Population] | None = field(default=None, repr=False)

    def population(self, cell: Cell) -> Population:
        """The clients of a run, kept for the next one. Raises ``UsageError``, ``DataError``."""
        wanted = (cell.partition, cell.clients, cell.seed)
        if self._kept is None or self._kept[0] != wanted:
            fleet = self.source.fleet(*wanted)
            people = Population.of(self.plan, fleet.clients, fleet.test, self.holdout)
            self._kept = (wanted, people)
        return self._kept[1]

    def check(self, all_cells: Sequence[Cell]) -> None:
        """Refuse now what a run would refuse later. Raises what it would."""
        for cell in sorted(all_cells, key=lambda cell: str((cell.partition, cell.clients))):
            clients = self.population(cell).clients
            cohort = cell.options.get("cohort")
            most = f"from 1 to {len(clients)}, the clients"
            require(cohort is None or 1 <= cohort <= len(clients), "cohort", cohort, most)
            scheme = cell.options.get("scheme", "f32")
            self.plan.variant_graph(scheme)
            cell.arguments()
            named = cell.options.get("personal")
            FleetConfig(
                algorithm=cell.algorithm,
                server_optimizer=cell.optimizer,
                rounds=self.rounds,
                schemes=(scheme,),
                uplink=(cell.options.get("uplink", "f32"),),
                downlink=cell.options.get("downlink", "f32"),
                feedback=cell.options.get("feedback", False),
                share=cell.options.get("share", 0.0),
                schedule=schedules.parse(cell.options.get("schedule", "")),
                personal=personal.parse(named) if named else None,
            )

    def __call__(self, cell: Cell, tell: Callable[[RoundRow], None]) -> RunRow:
        """Work one run: its row, after one of each round was told."""
        rows: list[RoundRow] = []
        facts: dict[str, Any] = {}

        def told(measured: Measured) -> None:
            rows.append(round_row(cell, measured))
            tell(rows[-1])

        people = self.population(cell)
        why = ""
        try:
            history, _ = run(
                self.plan,
                people,
                cell.algorithm,
                optimizer=cell.optimizer,
                rounds=self.rounds,
                seed=cell.seed,
                measures=self.measures,
                on_round=told,
                **cell.arguments(),
                **self.execution,
            )
        except RoundAbandoned as error:
            why = f"{error.what}: {error.why}"
        else:
            facts = {
                "updates_counted": history.updates_counted,
                "updates_refused": history.updates_refused,
                "control_gap": history.control_gap,
                **own_models(history),
            }
        return run_row(cell, rows, len(people.clients), self.measures.target, why, facts)


def sweep(
    plan: Plan | str,
    source: Source,
    *,
    axes: Axes | None = None,
    seeds: Sequence[int] = (0,),
    settings: Mapping[str, Any] | None = None,
    rounds: int = 10,
    holdout: float = 0.0,
    measures: Measures | None = None,
    out: Path | None = None,
    processes: int = 1,
    begin: Callable[[list[Cell], Results], None] = lambda _cells, _results: None,
    on_round: Callable[[RoundRow], None] = lambda _row: None,
    on_run: Callable[[RunRow], None] = lambda _row: None,
    execution: Mapping[str, Any] | None = None,
) -> Sweep:
    """Run the cross product of ``axes`` for each seed, and keep what is finished.

    plan: a path, a built-in name or a plan. source: `Pool`, `Given` or `People`.
    axes: by a setting's name, the values it takes: ``{"algorithm": ["fedavg", "scaffold"],
    "alpha": [0.1, 1.0]}``; settings: those that all runs share, likewise. A name is that of
    a hyperparameter of an algorithm or server optimizer, or ``algorithm``, ``server_optimizer``,
    ``partition``, ``clients``, ``least``, ``feature``, ``cohort``, ``selection``, ``schedule``,
    ``personal``, ``scheme``, ``shift``, ``uplink``, ``share``, ``feedback``, ``downlink``, and
    the number of a partition (``alpha``, ``percent``, ``labels``).
    holdout: the share of each client's samples that it does not train on; see `Population`.
    out: the directory that keeps rows; the same sweep goes on from there (`Results`). processes:
    how many work runs; with more than one the caller must be importable, as multiprocessing
    wants it. ``begin`` is told all runs and what is there of them, ``on_round`` and ``on_run``
    what ends. ``execution``: further arguments of `kellet.server.simulate`, of which the result
    does not depend.

    The seed decides partition, test people, cohorts and batches, so that a run is that of
    ``simulate`` with its settings, to the bit. All runs are checked before the first begins.
    Raises ``UsageError``, ``DataError`` and ``PlanError`` for what cannot be run; a run whose
    models become infinite is kept as failed.
    """
    require(isinstance(processes, int) and processes >= 1, "processes", processes, "at least 1")
    axes, settings, measures = axes or {}, settings or {}, measures or Measures()
    opened = Plan.open(plan) if isinstance(plan, str) else plan
    experiment = Experiment(opened, source, rounds, holdout, measures, dict(execution or {}))
    all_cells = cells(settings, axes, seeds)
    experiment.check(all_cells)
    configuration = {
        "format": FORMAT,
        "kellet": metadata.version("kellet"),
        "plan": f"{opened.manifest.name} {opened.hex_id[:16]}",
        "data": source.digest(),
        "rounds": rounds,
        "holdout": holdout,
        "judge_every": measures.judge_every,
        "target_accuracy": measures.target,
        "settings": {name: text(value) for name, value in settings.items()},
        "sweep": {name: [text(value) for value in values] for name, values in axes.items()},
        "seeds": list(seeds),
        "runs": hashlib.sha256("\n".join(c.resolved for c in all_cells).encode()).hexdigest()[:16],
    }
    with Results(out, configuration) as results:
        there = {row.cell for row in results.runs}
        begin(all_cells, results)

        def told(_cell: Cell, row: RoundRow) -> None:
            results.round(row)
            on_round(row)

        def done(_cell: Cell, row: RunRow) -> None:
            results.run(row)
            on_run(row)

        missing = [cell for cell in all_cells if cell.key not in there]
        work_and_tell(experiment, missing, processes, done, told)
        order = {cell.key: i for i, cell in enumerate(all_cells)}
        return Sweep(
            configuration,
            sorted(results.runs, key=lambda row: order[row.cell]),
            sorted(results.rounds, key=lambda row: (order[row.cell], row.round)),
        )


def round_row(cell: Cell, measured: Measured) -> RoundRow:
    """A measured round as a row."""
    record, judged = measured.record, measured.judged
    return RoundRow(
        cell=cell.key,
        settings=cell.settings,
        round=record.round,
        counted=len(record.counted),
        asked=len(record.asked),
        accuracy=judged.accuracy,
        loss=judged.loss,
        pr_auc=judged.pr_auc,
        roc_auc=judged.roc_auc,
        client_accuracy=judged.client_accuracy,
        client_worst=judged.client_worst,
        train_loss=record.train_loss,
        drift_mean=record.drift,
        drift_max=record.drift_max,
        gradient=measured.gradient,
        drift_bound=measured.drift_bound,
        step_norm=record.step_norm,
        personal_accuracy=record.personal_accuracy,
        personal_worst=record.personal_accuracy_worst,
        evenness=record.counted_entropy,
        up_mb=record.uplink_bytes / MB,
        down_mb=record.downlink_bytes / MB,
        wall_seconds=measured.wall_seconds,
        model=record.model,
    )


def partitioned(
    pool: Pool | Sequence[ArrayLike], partition: str, clients: int | None = None, *, seed: int = 0
) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """The clients of a pool shared out, for ``simulate``: id -> (x, y).

    pool: a `Pool`, or its (x, y) or (x, y, owners). partition: as in the command,
    ``dirichlet:0.1``, ``similarity:10``, ``by-label:2``, ``quantity:0.5``, ``feature:0.5`` or
    ``natural``. Raises ``UsageError``, ``DataError``.

    >>> x, y = np.zeros((4, 1), np.float32), np.array([1, 0, 1, 0])
    >>> {name: y.tolist() for name, (x, y) in partitioned((x, y), "by-label:1", 2).items()}
    {'client-0': [0, 0], 'client-1': [1, 1]}
    """
    kind, amount = parse(partition)
    shared = Partition(kind=kind, amount=amount, clients=clients)
    given = pool if isinstance(pool, Pool) else Pool.of(pool)
    return clients_of(shared.of(given, seed), given.x, given.y)
