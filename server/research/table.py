"""Rows put together: a run from its rounds, and runs of several seeds as one line.

>>> spread([0.5, 0.75, None])
Spread(mean=0.625, least=0.5, greatest=0.75, of=2)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kellet.server.metrics import worst_decile
from kellet.server.research.rows import RoundRow, RunRow
from kellet.server.research.settings import Cell

if TYPE_CHECKING:
    from kellet.server.history import History

__all__ = ["SUMMARISED", "Line", "Spread", "own_models", "run_row", "spread", "summarised"]

# The numbers of a run that a line has.
SUMMARISED = (
    *("accuracy", "best_accuracy", "loss", "pr_auc", "roc_auc", "client_accuracy", "client_worst"),
    *("best_client_worst", "train_loss", "drift_mean", "drift_max", "of_bound"),
    *("personal_accuracy", "personal_worst", "evenness"),
    *("rounds_to_target", "mb_to_target", "up_mb", "down_mb", "wall_seconds"),
)


class Spread(Struct, frozen=True):
    """The mean and the range of a number over seeds, ``of`` how many that had it."""

    mean: float
    least: float
    greatest: float
    of: int


class Line(Struct, frozen=True, kw_only=True):
    """Runs that differ by their seed alone. ``numbers`` are of those that did not fail."""

    settings: dict[str, Any]
    runs: int
    failed: int
    numbers: dict[str, Spread | None]


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and range of the numbers among ``values``; None where there are none."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return Spread(fmean(numbers), min(numbers), max(numbers), len(numbers))


def summarised(runs: Sequence[RunRow]) -> list[Line]:
    """A line for the runs of equal settings, the seed aside, in the order of their first."""
    groups: dict[str, list[RunRow]] = {}
    for row in runs:
        groups.setdefault(json.dumps(_seedless(row.settings), sort_keys=True), []).append(row)
    lines = []
    for group in groups.values():
        finished = [row for row in group if row.state == "finished"]
        lines.append(
            Line(
                settings=_seedless(group[0].settings),
                runs=len(group),
                failed=len(group) - len(finished),
                numbers={
                    name: spread(getattr(row, name) for row in finished) for name in SUMMARISED
                },
            )
        )
    return lines


def run_row(  # noqa: PLR0917
    cell: Cell,
    rows: Sequence[RoundRow],
    clients: int,
    target: float | None,
    why: str,
    facts: Mapping[str, Any],
) -> RunRow:
    """A run's row from those of its rounds. ``why``: why it failed; empty if it did not."""
    last = rows[-1] if rows else None
    judged = [row for row in rows if row.accuracy is not None]
    best = max(judged, key=lambda row: (row.accuracy or 0.0, -row.round), default=None)
    reached = next(
        (row for row in judged if target is not None and (row.accuracy or 0.0) >= target), None
    )
    drift = spread(row.drift_mean for row in rows)
    largest = spread(row.drift_max for row in rows)
    used = [row.drift_max / row.drift_bound for row in rows if row.drift_max and row.drift_bound]
    of_last = ("accuracy", "loss", "pr_auc", "roc_auc", "client_accuracy", "client_worst")
    return RunRow(
        cell=cell.key,
        settings=cell.settings,
        state="failed" if why else "finished",
        why=why,
        rounds=len(rows),
        **{name: getattr(last, name, None) for name in (*of_last, "train_loss")},
        best_round=best.round if best else None,
        best_accuracy=best.accuracy if best else None,
        best_client_worst=best.client_worst if best else None,
        rounds_to_target=reached.round if reached else None,
        mb_to_target=round(reached.up_mb + reached.down_mb, 6) if reached else None,
        drift_mean=drift.mean if drift else None,
        drift_max=largest.greatest if largest else None,
        of_bound=max(used, default=None),
        personal_accuracy=facts.get("personal_accuracy"),
        personal_worst=facts.get("personal_worst"),
        evenness=last.evenness if last else None,
        up_mb=last.up_mb if last else 0.0,
        down_mb=last.down_mb if last else 0.0,
        wall_seconds=round(sum(row.wall_seconds for row in rows), 6),
        clients=clients,
        updates_counted=facts.get("updates_counted"),
        updates_refused=facts.get("updates_refused"),
        control_gap=facts.get("control_gap"),
        model=last.model if last else "",
    )


def own_models(history: History) -> dict[str, float]:
    """How the clients' own models do after the last round, where they have some."""
    told = [client.personal_accuracy for client in history.clients.values()]
    known = [accuracy for accuracy in told if accuracy is not None]
    if not known:
        return {}
    return {"personal_accuracy": fmean(known), "personal_worst": worst_decile(known)}


def _seedless(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "seed"}
