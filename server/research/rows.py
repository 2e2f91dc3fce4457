"""What is written of a round and of a run: one JSON object a line.

Settings are under ``settings``, by name; ``cell`` is the run's name, which has those that were
swept. A number that there is not (no test set, no bound) is null. MB are 10^6 bytes of payload.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

__all__ = ["RoundRow", "RunRow", "flat"]

Settings = dict[str, Any]


class RoundRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One round of a run.

    ``counted`` and ``asked``: how many clients. ``accuracy`` to ``client_worst``: see
    `kellet.server.research.Judged`; null in rounds that were not judged. ``train_loss``: the
    data's loss over the local steps, mean over the clients counted. ``drift_mean``,
    ``drift_max``: of ||y_i - x|| over them. ``gradient``: G as `Gradients` measures it, and
    ``drift_bound`` FedProx's G / mu; null where the bound does not apply. ``step_norm``: of the
    server's step. ``personal_accuracy``, ``personal_worst``: of the counted clients' own models on
    what they hold out, mean and worst tenth. ``evenness``: how evenly clients were counted up to
    now, the entropy of `kellet.server.selection.entropy`, 1 where all were as often.
    ``up_mb``, ``down_mb``: sent since the run began, by clients and to them.
    ``wall_seconds``: the round without its judging. ``model``: SHA-256 after the round.
    """

    cell: str
    settings: Settings
    round: int
    counted: int
    asked: int
    accuracy: float | None
    loss: float | None
    pr_auc: float | None
    roc_auc: float | None
    client_accuracy: float | None
    client_worst: float | None
    train_loss: float | None
    drift_mean: float | None
    drift_max: float | None
    gradient: float | None
    drift_bound: float | None
    step_norm: float | None
    personal_accuracy: float | None
    personal_worst: float | None
    evenness: float | None
    up_mb: float
    down_mb: float
    wall_seconds: float
    model: str


class RunRow(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that has ended.

    ``state``: ``failed`` where its updates could not be used (a rate that is too high makes
    models infinite); ``why`` then says so, and its numbers are of the rounds before. ``accuracy``
    to ``client_worst``, ``train_loss``: of the last round. ``best_*``: over the rounds that were
    judged, of the one with the highest test accuracy (the first such), ``best_round`` that one.
    ``rounds_to_target`` and ``mb_to_target``: the first judged round whose test accuracy is at
    least the target, and MB in both directions until its end; null where there was none.
    ``drift_mean``, ``drift_max``: the mean and the maximum over the rounds. ``of_bound``: the
    largest ``drift_max / drift_bound`` of a round, above 1 where the bound was exceeded; null
    where no round had one.
    ``personal_accuracy``, ``personal_worst``: of all clients' own models after the last round;
    ``evenness`` after it. ``control_gap``: the largest |C - sum c_i|, in steps of the grid: 0.
    """

    cell: str
    settings: Settings
    state: Literal["finished", "failed"]
    why: str
    rounds: int
    accuracy: float | None
    loss: float | None
    pr_auc: float | None
    roc_auc: float | None
    client_accuracy: float | None
    client_worst: float | None
    best_round: int | None
    best_accuracy: float | None
    best_client_worst: float | None
    rounds_to_target: int | None
    mb_to_target: float | None
    train_loss: float | None
    drift_mean: float | None
    drift_max: float | None
    of_bound: float | None
    personal_accuracy: float | None
    personal_worst: float | None
    evenness: float | None
    up_mb: float
    down_mb: float
    wall_seconds: float
    clients: int
    updates_counted: int | None
    updates_refused: int | None
    control_gap: int | None
    model: str


def flat(row: Struct) -> dict[str, Any]:
    """A row without nesting, as pandas' ``json_normalize`` has it: ``settings.alpha``."""
    facts = {name: getattr(row, name) for name in row.__struct_fields__}
    settings = facts.pop("settings")
    head = {"cell": facts.pop("cell")} | {f"settings.{k}": v for k, v in settings.items()}
    return head | facts
