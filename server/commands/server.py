"""``kellet server``: an aggregator as a process, with a broker where one is wanted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kellet.sdk.commands.link import LinkOptions
from kellet.sdk.commands.options import Folder
from kellet.sdk.console import Console
from kellet.sdk.signals import Interrupted, orderly_stop
from kellet.server.commands.algorithm import AlgorithmOptions
from kellet.server.commands.broker import BrokerOptions, own_url, remember_port
from kellet.server.commands.round_options import RoundOptions
from kellet.server.commands.rounds import RoundLog, megabytes
from kellet.server.commands.selection import SelectionOptions

if TYPE_CHECKING:
    from kellet.sdk.protocol.effects import Report
    from kellet.server.brokers import BrokerHandle
    from kellet.server.config import FleetConfig
    from kellet.server.ledger import RoundRow

__all__ = ["command"]

command = App(name="server")


@command.default
def server(
    plan: str,
    /,
    *,
    state: Folder,
    broker: Annotated[str, Parameter(env_var="KELLET_BROKER")] = "embedded",
    test: str | None = None,
    digest: str | None = None,
    stay: bool = False,
    new_epoch: bool = False,
    algorithm: AlgorithmOptions | None = None,
    rounds: RoundOptions | None = None,
    selection: SelectionOptions | None = None,
    broker_options: BrokerOptions | None = None,
    link: LinkOptions | None = None,
    json: bool = False,
) -> None:
    """Run a fleet's rounds beside a broker.

    Stop it at any time: started again over the same --state it goes on in the same
    round with the same numbers. The newest model is STATE/model.onnx.

    Parameters
    ----------
    plan
        A .kplan file, or a built-in plan: wisdm or har.
    state
        Directory with ledger and models. It must outlive the process.
    broker
        embedded (on this machine alone), mosquitto, or the address of a running one.
    test
        MODULE:FUNCTION, called without arguments, returns (x, y) to judge each model.
    digest
        SHA-256 that the plan must have.
    stay
        Go on answering devices when the rounds are done, until stopped.
    new_epoch
        Begin a control epoch: every control starts again at zero.
    json
        Report in JSON lines.
    """
    from kellet.sdk.commands.functions import call, find_function, xy
    from kellet.sdk.plan import Plan
    from kellet.server.service import Aggregator

    opened = Plan.open(plan, digest=digest)
    judged = xy(call(find_function(test, "--test"), test), test) if test else None
    options, link = broker_options or BrokerOptions(), link or LinkOptions()
    for_link = link.for_link()
    with Console(json=json) as console, options.open(broker, state, link.ca_file) as handle:
        rounds = rounds or RoundOptions()
        asking = rounds.selection(
            selection or SelectionOptions(), opened.manifest, judged[0] if judged else None
        )
        config = rounds.config(link.fleet, algorithm or AlgorithmOptions(), handle, asking)
        teller = _Teller(console, config, evaluated=judged is not None)
        if handle.kind != "external":
            for_link |= {"separate_bulk": handle.separate_bulk, "ca_file": handle.ca_file}
        aggregator = Aggregator(
            opened,
            broker=own_url(handle),
            state=state,
            config=config,
            test=judged,
            new_epoch=new_epoch,
            on_report=teller.tell,
            **for_link,
        )
        try:
            remember_port(state, handle)
            teller.begin(opened.manifest.name, handle, resumed=aggregator.machine.round)
            try:
                with orderly_stop(aggregator.stop):
                    aggregator.run(until_finished=not stay)
            except Interrupted:
                if not aggregator.machine.finished:
                    console.end_display(keep=True)
                    console.say(f"stopped in round {aggregator.machine.round}; the state is whole")
                    raise
            teller.end(aggregator, Path(state).absolute() / "model.onnx")
        finally:
            aggregator.close()


class _Teller:
    """Puts an aggregator's reports into a round log, and sums the run up."""

    def __init__(self, console: Console, config: FleetConfig, *, evaluated: bool) -> None:
        self._console = console
        self._config = config
        self._log = RoundLog(console, evaluated=evaluated)
        self._title = ""
        self._resumed = 0
        self._began = time.monotonic()

    def begin(self, name: str, handle: BrokerHandle, resumed: int) -> None:
        config, console = self._config, self._console
        self._resumed = resumed
        by = f" with {config.server_optimizer.name}" if config.server_optimizer else ""
        self._title = (
            f"{config.algorithm.name}{by} on {name}, round {{round}} of {config.rounds}, "
            f"at {handle.public_url}"
        )
        address = handle.public_url
        if handle.kind == "mosquitto" and handle.username:
            address = address.replace("://", "://DEVICE:PASSWORD@", 1)
        join = f"kellet run DEVICE --broker {address} --data MODULE:FUNCTION --state DIR"
        join += " --separate-bulk" if handle.separate_bulk else ""
        join += f" --fleet {config.fleet}" if config.fleet != "kellet" else ""
        console.event(
            "serving",
            {
                "broker": handle.public_url,
                "join": join,
                "separate_bulk": handle.separate_bulk,
                "plan": name,
                "fleet": config.fleet,
                "algorithm": config.algorithm.wire(),
                "server_optimizer": config.server_optimizer and config.server_optimizer.wire(),
                "resumed_after_round": resumed,
            },
        )
        console.say(f"Devices join with:\n  {join}")
        if resumed:
            console.say(f"Going on after round {resumed}.")

    def tell(self, report: Report) -> None:
        facts = report.data
        if report.kind == "round":
            facts = facts | self._log.traffic(facts)
        self._console.event(report.kind, facts)
        if report.kind == "round":
            self._log.closed(facts)
        elif report.kind == "evaluated":
            self._log.annotate(facts)
        text = _words(report.kind, facts)
        if text:
            self._console.say(f"{time.strftime('%H:%M:%S')} {text}")
        title = self._title.format(round=self._log.last.get("round", 0))
        self._console.show(lambda: self._log.table(title))

    def end(self, aggregator: Any, model: Path) -> None:
        """The last line: what the run came to."""
        counted, _ = aggregator.ledger.totals()
        up, down = aggregator.machine.traffic
        rows = [row for row in aggregator.ledger.rounds() if row.state == "closed"]
        last = rows[-1].summary if rows else {}
        facts = {
            "event": "summary",
            "algorithm": self._config.algorithm.name,
            "server_optimizer": by.name if (by := self._config.server_optimizer) else None,
            "rounds": len(rows),
            "accuracy": last.get("accuracy"),
            "loss": last.get("loss"),
            "devices": aggregator.machine.members,
            "updates_counted": counted,
            "updates_refused": aggregator.machine.refused,
            "uplink_bytes": up,
            "downlink_bytes": down,  # both since this process began, as are the seconds
            "resumed_after_round": self._resumed,
            "asked_entropy": last.get("asked_entropy"),
            "counted_entropy": last.get("counted_entropy"),
            **_staleness(rows),
            **{name: value for name, value in last.items() if name.startswith("personal_")},
            "seconds": round(time.monotonic() - self._began, 2),
            "digest": aggregator.machine.digest.hex(),
            "model": str(model) if model.is_file() else None,
        }
        accuracy = "" if facts["accuracy"] is None else f", accuracy {facts['accuracy']:.1%}"
        own = ""
        if facts.get("personal_accuracy") is not None:
            own = f"\nDevices' own models: accuracy {facts['personal_accuracy']:.1%} in the mean, "
            own += f"{facts['personal_accuracy_worst']:.1%} over the worst tenth of the last round."
        late = f", {facts['staleness']:.2f} rounds late on average" if "staleness" in facts else ""
        since = f" since round {self._resumed}" if self._resumed else ""
        self._console.end_display(keep=True)
        self._console.result(
            facts,
            f"{len(rows)} rounds done{accuracy}; {counted} updates counted{late}, "
            f"{megabytes(up)} up, {megabytes(down)} down{since}.{own}\nThe model: {facts['model']}",
        )


def _words(kind: str, facts: dict[str, Any]) -> str:
    """One line about a report; empty where people need none."""
    match kind:
        case "enrolled" | "returned":
            return f"{facts['device']} {kind}"
        case "refused_update":
            return f"{facts['device']}: update of round {facts['round']} refused: {facts['reason']}"
        case "restored" | "fenced":
            return f"{facts['device']} is sent back ({kind}): {facts['why']}"
        case "waiting":
            return "waiting for devices"
        case "link_lost":
            return f"no link to the broker: {facts['reason']}; trying again"
        case "abort":
            return f"{facts['device']} gave up: {facts['reason']}"
        case "declined":
            return f"{facts['device']} does not train in round {facts['round']}: {facts['reason']}"
        case "settings_changed":
            changes = (
                f"{name} {_value(was)} -> {_value(now)}"
                for name, (was, now) in facts["changed"].items()
            )
            anew = "server_optimizer" in facts["changed"]
            return f"training goes on with other settings: {', '.join(changes)}" + (
                "; the server optimizer begins anew" if anew else ""
            )
        case "silent":
            listed = ", ".join(facts["devices"])
            return f"not heard of for too long: {listed}; their controls would bias the others'"
        case "epoch":
            return f"control epoch {facts['epoch']}: every control starts again at zero"
        case "storage":
            return f"an update has to wait: {facts['error']}"
    return ""


def _staleness(rows: list[RoundRow]) -> dict[str, float]:
    """How many rounds late the updates of closed rounds were on average, if any could be."""
    told = [row.summary for row in rows if row.summary.get("staleness") is not None]
    if not told:
        return {}
    updates = sum(len(summary["counted"]) for summary in told)
    late = sum(summary["staleness"] * len(summary["counted"]) for summary in told)
    return {"staleness": late / updates}


def _value(setting: object) -> str:
    return ",".join(map(str, setting)) if isinstance(setting, list) else str(setting)
