"""Runs to report on: a simulation's history, and an aggregator's ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kellet.sdk.errors import UsageError
from kellet.server import optimizers
from kellet.server.report.record import RUN_FILE, Curve, Round, Run, load_run, now, versions

if TYPE_CHECKING:
    from kellet.sdk.algorithms import FedAvg
    from kellet.sdk.plan import Plan
    from kellet.server.history import History
    from kellet.server.optimizers import ServerOptimizer

__all__ = ["curve_of", "find_run", "from_history", "from_ledger", "rounds_of"]

LEDGER = "ledger.db"


def find_run(folder: Path) -> Run:
    """The run that ``folder`` keeps: a demo's, a simulation's, or an aggregator's.

    Raises ``UsageError`` where there is none, ``StorageError`` where it cannot be read.
    """
    for path in (folder / RUN_FILE, folder / "state" / RUN_FILE):
        if path.is_file():
            return load_run(path)
    for state in (folder, folder / "server", folder / "state" / "server"):
        if (state / LEDGER).is_file():
            return from_ledger(state)
    raise UsageError(
        f"there is no run in {folder}",
        why=f"it has neither {RUN_FILE} nor {LEDGER}",
        repair="give the --report or --state directory of a demo, a simulation or a server",
    )


def rounds_of(summaries: Iterable[Mapping[str, Any]]) -> list[Round]:
    """Rounds from what aggregators say of them, whose bytes are totals."""
    rounds: list[Round] = []
    up = down = 0
    for facts in summaries:
        known = {name: facts[name] for name in Round.__struct_fields__ if name in facts}
        known["uplink_bytes"] = facts["uplink_bytes"] - up
        known["downlink_bytes"] = facts["downlink_bytes"] - down
        up, down = facts["uplink_bytes"], facts["downlink_bytes"]
        rounds.append(msgspec.convert(known, Round))
    return rounds


def curve_of(
    history: History, algorithm: FedAvg, optimizer: ServerOptimizer | None = None
) -> Curve:
    """A simulation as a curve."""
    return Curve(
        algorithm=algorithm.name,
        source="simulated",
        rounds=rounds_of(vars(record) for record in history.rounds),
        hyperparameters=_settings(algorithm, optimizer),
        digest=history.digest,
        control_gap=history.control_gap,
    )


def from_history(  # noqa: PLR0917
    plan: Plan,
    history: History,
    algorithm: FedAvg,
    seed: int,
    summary: Mapping[str, Any],
    optimizer: ServerOptimizer | None = None,
) -> Run:
    """A simulation as a run."""
    return Run(
        title=f"{plan.manifest.name}: {algorithm.name} in simulation",
        kind="simulation",
        algorithm=algorithm.name,
        created=now(),
        curves=[curve_of(history, algorithm, optimizer)],
        devices=sorted(history.c_i, key=lambda name: (len(name), name)),
        summary=dict(summary),
        settings={"plan": plan.hex_id, "seed": seed, **_settings(algorithm, optimizer)},
        versions=versions(),
    )


def from_ledger(state: Path) -> Run:
    """An aggregator's rounds so far, from its state directory."""
    from kellet.sdk.protocol import wire
    from kellet.sdk.protocol.messages import Round as Announcement
    from kellet.server.ledger import Ledger

    ledger = Ledger(state / LEDGER)
    try:
        rows = [row for row in ledger.rounds() if row.state != "open"]
        if not rows:
            raise UsageError(
                f"no round has ended in {state}",
                why="there is nothing to show yet",
                repair="let the aggregator run on",
            )
        announced = wire.unpack(rows[-1].announcement, Announcement)
        algorithm = announced.algorithm | optimizers.settings(announced.optimizing)
        counted, refused = ledger.totals()
        members = [m.device for m in ledger.members() if m.state == "active"]
    finally:
        ledger.close()
    rounds = rounds_of({"round": row.round, **row.summary} for row in rows)
    last = rounds[-1]
    return Run(
        title=f"{announced.plan_name}: {algorithm['name']} over MQTT",
        kind="server",
        algorithm=algorithm["name"],
        created=now(),
        curves=[
            Curve(
                algorithm=algorithm["name"],
                source="live",
                rounds=rounds,
                hyperparameters=algorithm,
                digest=rows[-1].summary["model"],
            )
        ],
        devices=sorted(members, key=lambda name: (len(name), name)),
        summary={
            "rounds": sum(r.closed for r in rounds),
            "accuracy": last.accuracy,
            "loss": last.loss,
            "devices": len(members),
            "updates_counted": counted,
            "updates_refused": refused,
            "uplink_bytes": rows[-1].summary["uplink_bytes"],
            "downlink_bytes": rows[-1].summary["downlink_bytes"],
        },
        settings={
            "plan": announced.plan.sha256.hex(),
            "target": announced.target,
            "quorum": announced.quorum,
            "deadline": announced.deadline,
            "seed": announced.seed,
            **algorithm,
        },
        versions=versions(),
    )


def _settings(algorithm: FedAvg, optimizer: ServerOptimizer | None) -> dict[str, Any]:
    return algorithm.wire() | optimizers.settings(optimizer.wire() if optimizer else None)
