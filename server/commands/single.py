"""One simulated run, as people see it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kellet.sdk.plan import Plan
from kellet.server.commands.rounds import RoundLog, megabytes
from kellet.server.research import Measured, Measures, Population, Source, run
from kellet.server.research.rows import RoundRow
from kellet.server.research.settings import cell_of
from kellet.server.research.sweep import round_row
from kellet.server.research.table import own_models, run_row

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from kellet.sdk.console import Console
    from kellet.server.commands.algorithm import AlgorithmOptions
    from kellet.server.history import History
    from kellet.server.research import Cell

__all__ = ["run_single"]

# What a measured round tells beside the aggregator's own facts.
_MEASURED = (
    *("pr_auc", "roc_auc", "client_accuracy", "client_worst", "gradient", "drift_bound"),
    *("up_mb", "down_mb", "wall_seconds"),
)
_SUMMED = (
    *("pr_auc", "roc_auc", "client_accuracy", "client_worst", "best_round", "best_accuracy"),
    *("best_client_worst", "rounds_to_target", "mb_to_target", "drift_mean", "drift_max"),
    *("of_bound", "up_mb", "down_mb", "wall_seconds"),
)


def run_single(
    console: Console,
    plan: str,
    source: Source,
    settings: Mapping[str, Any],
    chosen: AlgorithmOptions,
    *,
    rounds: int,
    seed: int,
    holdout: float,
    measures: Measures,
    execution: Mapping[str, Any],
    report: Path | None,
) -> None:
    """Run one simulation, and tell its rounds and what it came to."""
    algorithm, optimizer = chosen.make(), chosen.optimizer()
    shared = {"share": chosen.share} if chosen.share else {}  # of delta_c, which has no other name
    cell = cell_of(algorithm, optimizer, {**settings, **shared}, seed)
    opened = Plan.open(plan)
    fleet = source.fleet(cell.partition, cell.clients, seed)
    people = Population.of(opened, fleet.clients, fleet.test, holdout)
    teller = _Teller(console, cell, people, rounds, measures)
    history, _ = run(
        opened,
        people,
        algorithm,
        optimizer=optimizer,
        rounds=rounds,
        seed=seed,
        measures=measures,
        on_round=teller.tell,
        **cell.arguments(),
        **execution,
    )
    facts = teller.summary(history)
    if report is not None:
        from kellet.server.report import from_history, save_run, write_report

        record = from_history(opened, history, algorithm, seed, facts, optimizer)
        save_run(report, record)
        facts["report"] = str(write_report(report, record))
    console.end_display(keep=False)
    console.result(facts, _words(facts))


class _Teller:
    """Shows rounds as they close."""

    def __init__(
        self, console: Console, cell: Cell, people: Population, rounds: int, measures: Measures
    ) -> None:
        self._console = console
        self._cell = cell
        self._clients = len(people.clients)
        self._rounds = rounds
        self._target = measures.target
        self._rows: list[RoundRow] = []
        self._log = RoundLog(console, evaluated=False)
        self._began = time.monotonic()

    def tell(self, measured: Measured) -> None:
        row = round_row(self._cell, measured)
        self._rows.append(row)
        facts = vars(measured.record) | {name: getattr(row, name) for name in _MEASURED}
        facts |= self._log.traffic(facts)
        self._console.event("round", facts)
        self._log.closed(facts)
        self._console.show(self._view)

    def _view(self) -> RenderableType:
        from rich.console import Group
        from rich.padding import Padding  # a bar alone does not end its line
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        done = self._log.last["round"]
        name, by = self._cell.algorithm.name, self._cell.optimizer
        name = f"{name} with {by.name}" if by else name
        head = Text(f"{name}, {self._clients} clients, round {done} of {self._rounds}")
        return Group(head, Padding(ProgressBar(self._rounds, done, width=60), 0), self._log.table())

    def summary(self, history: History) -> dict[str, Any]:
        cell, last = self._cell, history.rounds[-1]
        row = run_row(cell, self._rows, self._clients, self._target, "", {})
        return {
            "event": "summary",
            "algorithm": cell.algorithm.name,
            "server_optimizer": cell.optimizer.name if cell.optimizer else None,
            "partition": str(cell.partition) if cell.partition else None,
            "scheme": cell.options.get("scheme", "f32"),
            "rounds": len(history.rounds),
            "accuracy": history.accuracy,
            "loss": history.loss,
            **{name: getattr(row, name) for name in _SUMMED},
            "clients": self._clients,
            "updates_counted": history.updates_counted,
            "updates_refused": history.updates_refused,
            "control_gap": history.control_gap,
            "uplink_bytes": last.uplink_bytes,
            "downlink_bytes": last.downlink_bytes,
            "seconds": round(time.monotonic() - self._began, 2),
            "digest": history.digest,
            **own_models(history),
        }


def _words(facts: Mapping[str, Any]) -> str:
    accuracy = "" if facts["accuracy"] is None else f", accuracy {facts['accuracy']:.1%}"
    lines = [
        f"{facts['rounds']} rounds in {facts['seconds']:.1f} s{accuracy}; "
        f"{facts['updates_counted']} updates counted, control gap {facts['control_gap']}, "
        f"{megabytes(facts['uplink_bytes'])} up, {megabytes(facts['downlink_bytes'])} down"
    ]
    told = []
    if facts["client_accuracy"] is not None:
        worst = f"{facts['client_worst']:.1%} over the worst tenth"
        told.append(f"clients {facts['client_accuracy']:.1%} in the mean, {worst}")
    if "personal_accuracy" in facts:
        worst = f"{facts['personal_worst']:.1%} over the worst tenth"
        told.append(f"their own models {facts['personal_accuracy']:.1%} in the mean, {worst}")
    if facts["pr_auc"] is not None:
        told.append(f"PR-AUC {facts['pr_auc']:.3f}, ROC-AUC {facts['roc_auc']:.3f}")
    if facts["drift_max"] is not None:
        drift = f"drift {facts['drift_mean']:.3g}, at most {facts['drift_max']:.3g}"
        if facts["of_bound"] is not None:
            drift += f"; of FedProx's bound G/mu at most {facts['of_bound']:.0%}"
        told.append(drift)
    lines += told
    if facts["rounds_to_target"] is not None:
        reached = f"round {facts['rounds_to_target']} and {facts['mb_to_target']:.2f} MB"
        lines.append(f"the target was reached with {reached}")
    lines.append(f"model {facts['digest']}")
    return "\n".join([*lines, *([f"report: {facts['report']}"] if "report" in facts else [])])
