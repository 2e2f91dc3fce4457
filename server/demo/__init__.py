"""The demo: a whole fleet on this machine, killed and restarted, and a report of it.

`run_demo` is what ``kellet demo`` runs. The aggregator and the devices are processes
of the same command that a user would run; nothing here is a stand-in.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kellet.kernels import backend
from kellet.sdk import tasks
from kellet.sdk.console import Console
from kellet.sdk.plan import Plan
from kellet.server.commands.rounds import RoundLog
from kellet.server.demo.chaos import Chaos
from kellet.server.demo.compare import compare, is_replay
from kellet.server.demo.fleet import SERVER, Fleet
from kellet.server.demo.invariant import Audit, audit_fleet
from kellet.server.demo.live import LiveRun, run_live
from kellet.server.demo.place import prepare
from kellet.server.demo.recipe import COMPARED, Settings
from kellet.server.demo.view import live_view
from kellet.server.report import check_installed, save_run, write_report
from kellet.server.report.record import Curve, Run, now, versions
from kellet.server.report.sources import rounds_of

__all__ = ["Settings", "run_demo"]


def run_demo(settings: Settings, console: Console) -> dict[str, Any]:
    """Run the demo and write its report; what it came to, as ``--json`` prints it.

    Raises ``KelletError``; whatever ends it, no process is left behind.
    """
    began = time.monotonic()
    check_installed()
    task = tasks.task(settings.task, settings.data_dir)
    people = tasks.split(task, settings.devices, settings.seed)
    plan = Plan.open(task.plan_name)
    lock = prepare(settings.state)
    try:
        run = _live(settings, people, console, began)
        audit = audit_fleet(
            settings.state / SERVER, {d: settings.state / d for d in people.devices}, plan
        )
        live = _live_curve(settings, run, audit)
        clients = {device: task.load(users) for device, users in people.devices.items()}

        def progress(name: str, round_: int) -> None:
            console.show(lambda: f"simulating {name} on the same data, round {round_}")

        test = task.load(people.test_users)
        curves = compare(plan, clients, test, settings, live=live.rounds, on_round=progress)
        console.end_display(keep=False)
        facts = _facts(settings, run, audit, live, curves)
        facts["report"] = str((settings.report / "report.html").absolute())
        facts["seconds"] = round(time.monotonic() - began, 1)
        record = _record(settings, people, run, [live, *curves], facts)
        save_run(settings.state, record)
        if settings.state_dir is not None:
            save_run(settings.report, record)  # `kellet report` finds it by either directory
        write_report(settings.report, record)
        facts["seconds"] = round(time.monotonic() - began, 1)
        return facts
    finally:
        lock.release()


def _live(settings: Settings, people: tasks.Split, console: Console, began: float) -> LiveRun:
    run = LiveRun(
        began=began,
        doing=dict.fromkeys(people.devices, "starting"),
        log=RoundLog(console, evaluated=True),
    )
    chaos = Chaos(
        people.devices,
        settings.seed,
        most_down=max(1, min(2, settings.devices - settings.target)),
    )

    def tell(kind: str, facts: Mapping[str, Any]) -> None:
        console.event(kind, facts)
        if kind in ("killed", "restarted") and not console.live:
            console.say(f"       {facts['device']} {kind} in round {facts['round']}")

    with Fleet(settings, people) as fleet:
        fleet.start()
        console.say(
            f"{settings.algorithm} on {settings.task}: {settings.devices} device processes and an "
            f"aggregator at {fleet.broker.url}\ntest: the people {_listed(people.test_users)}, "
            "whom no device knows"
        )
        run_live(
            fleet,
            run,
            chaos,
            tell=tell,
            show=lambda: console.show(lambda: live_view(settings, run)),
        )
    console.end_display(keep=True)
    return run


def _live_curve(settings: Settings, run: LiveRun, audit: Audit) -> Curve:
    summaries = [
        facts | {"closed_at": run.closed_at[number]}
        for number, facts in sorted(run.log.rounds.items())
    ]
    return Curve(
        algorithm=settings.algorithm,
        source="live",
        rounds=rounds_of(summaries),
        hyperparameters=settings.recipe.algorithm(settings.algorithm).wire(),
        digest=run.summary["digest"],
        control_gap=audit.gap,
    )


def _facts(
    settings: Settings, run: LiveRun, audit: Audit, live: Curve, curves: list[Curve]
) -> dict[str, Any]:
    names = (
        *("algorithm", "rounds", "accuracy", "loss", "devices"),
        *("updates_counted", "updates_refused", "uplink_bytes", "downlink_bytes"),
    )
    replay = curves[COMPARED.index(settings.algorithm)]
    return {
        "event": "summary",
        **{name: run.summary[name] for name in names},
        "control_gap": audit.gap,
        "device_peak_mb": run.peak_mb,
        "kills": run.kills,
        "restarts": run.restarts,
        "unsettled": audit.unsettled,
        "ghosts": audit.ghosts,
        "replayed": is_replay(live, replay),
        "kernels": backend(),
        "task": settings.task,
        "seed": settings.seed,
        "broker": settings.broker if settings.broker in ("embedded", "mosquitto") else "external",
        "digest": live.digest,
    }


def _record(
    settings: Settings,
    people: tasks.Split,
    run: LiveRun,
    curves: list[Curve],
    facts: Mapping[str, Any],
) -> Run:
    return Run(
        title=f"{settings.algorithm} on {settings.task}, over MQTT",
        kind="demo",
        algorithm=settings.algorithm,
        created=now(),
        curves=curves,
        devices=list(people.devices),
        summary=dict(facts),
        settings={
            "task": settings.task,
            "devices": settings.devices,
            "rounds": settings.n_rounds,
            "target": settings.target,
            "quorum": settings.quorum,
            "seed": settings.seed,
            "broker": facts["broker"],
            **curves[0].hyperparameters,
        },
        versions=versions(),
        events=run.events,
        test=f"the people {_listed(people.test_users)}, whom no device knows",
    )


def _listed(users: tuple[int, ...]) -> str:
    return ", ".join(map(str, users[:-1])) + f" and {users[-1]}"
