"""``kellet server``: an aggregator as a process, with a broker where one is wanted."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from kellet.sdk.commands.link import LinkOptions
from kellet.sdk.console import Console
from kellet.sdk.errors import UsageError
from kellet.sdk.signals import Interrupted, orderly_stop
from kellet.server.commands.algorithm import AlgorithmOptions
from kellet.server.commands.rounds import RoundLog, megabytes

if TYPE_CHECKING:
    from kellet.sdk.protocol.effects import Report
    from kellet.server.brokers import BrokerHandle
    from kellet.server.config import FleetConfig

__all__ = ["command"]

command = App(name="server")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RoundOptions:
    """How rounds run."""

    rounds: int = 10
    """Rounds until the run is finished."""

    target: int = 2
    """Counted updates at which a round closes early."""

    quorum: int = 1
    """Counted updates without which a round is abandoned at its deadline."""

    deadline: float = 60.0
    """Seconds that a round lasts at most."""

    over_select: float = 1.25
    """Devices asked, as a multiple of the target."""

    min_devices: int = 1
    """Devices that must be enrolled before the first round."""

    member_ttl: float = 7 * 86400.0
    """Seconds of silence after which a device that was never counted is forgotten."""

    seed: int = 0
    """Orders the batches on all devices."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Where a broker of our own listens, and whom it lets in."""

    host: str | None = None
    """Where it listens: 127.0.0.1, unless Mosquitto has --users."""

    port: int | None = None
    """Its port; a free one, and the same again after a restart, unless given."""

    users: Path | None = None
    """Mosquitto: file of DEVICE:PASSWORD lines; each device may then speak for itself alone."""

    tls_cert: Path | None = None
    """Mosquitto: PEM file of the broker's certificate."""

    tls_key: Path | None = None
    """Mosquitto: PEM file of the certificate's key."""

    part_size: int | None = None
    """Bytes in a message; what suits the broker, unless given."""

    admission: int | None = None
    """Bytes of updates on their way at once; what suits the broker, unless given."""


@command.default
def server(
    plan: str,
    /,
    *,
    state: Path,
    broker: Annotated[str, Parameter(env_var="KELLET_BROKER")] = "embedded",
    test: str | None = None,
    digest: str | None = None,
    stay: bool = False,
    new_epoch: bool = False,
    algorithm: AlgorithmOptions | None = None,
    rounds: RoundOptions | None = None,
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
    from kellet.server.brokers import open_broker
    from kellet.server.service import Aggregator

    opened = Plan.open(plan, digest=digest)
    judged = xy(call(find_function(test, "--test"), test), test) if test else None
    options, link = broker_options or BrokerOptions(), link or LinkOptions()
    with Console(json=json) as console, _open(broker, state, options, link, open_broker) as handle:
        if handle.kind != "external":
            _remember_port(state, handle)
        config = _config(rounds or RoundOptions(), algorithm or AlgorithmOptions(), link, handle)
        teller = _Teller(console, config, evaluated=judged is not None)
        for_link = link.for_link()
        if handle.kind != "external":
            for_link |= {"separate_bulk": handle.separate_bulk, "ca_file": handle.ca_file}
        aggregator = Aggregator(
            opened,
            broker=_own_url(handle),
            state=state,
            config=config,
            test=judged,
            new_epoch=new_epoch,
            on_report=teller.tell,
            **for_link,
        )
        try:
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
        self._began = time.monotonic()

    def begin(self, name: str, handle: BrokerHandle, resumed: int) -> None:
        config, console = self._config, self._console
        self._title = (
            f"{config.algorithm.name} on {name}, round {{round}} of {config.rounds}, "
            f"at {handle.public_url}"
        )
        console.event(
            "serving",
            {
                "broker": handle.public_url,
                "separate_bulk": handle.separate_bulk,
                "plan": name,
                "fleet": config.fleet,
                "algorithm": config.algorithm.wire(),
                "resumed_after_round": resumed,
            },
        )
        join = f"kellet run DEVICE --broker {handle.public_url} --data MODULE:FUNCTION --state DIR"
        join += " --separate-bulk" if handle.separate_bulk else ""
        join += f" --fleet {config.fleet}" if config.fleet != "kellet" else ""
        console.say(f"Devices join with:\n  {join}")
        if resumed:
            console.say(f"Going on after round {resumed}.")

    def tell(self, report: Report) -> None:
        facts = report.data
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
            "rounds": len(rows),
            "accuracy": last.get("accuracy"),
            "loss": last.get("loss"),
            "devices": aggregator.machine.members,
            "updates_counted": counted,
            "updates_refused": aggregator.machine.refused,
            "uplink_bytes": up,
            "downlink_bytes": down,
            "seconds": round(time.monotonic() - self._began, 2),
            "digest": aggregator.machine.digest.hex(),
            "model": str(model) if model.is_file() else None,
        }
        accuracy = "" if facts["accuracy"] is None else f", accuracy {facts['accuracy']:.1%}"
        self._console.end_display(keep=True)
        self._console.result(
            facts,
            f"{len(rows)} rounds done{accuracy}; {counted} updates counted, "
            f"{megabytes(up)} up, {megabytes(down)} down.\nThe model: {facts['model']}",
        )


def _open(
    broker: str, state: Path, options: BrokerOptions, link: LinkOptions, open_broker: Any
) -> BrokerHandle:
    from kellet.server.brokers import TlsFiles
    from kellet.server.brokers.child import port_is_free

    tls = None
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UsageError("--tls-cert and --tls-key belong together", repair="give both")
    if options.tls_cert is not None and options.tls_key is not None:
        tls = TlsFiles(options.tls_cert, options.tls_key)
    port = options.port
    if port is None and broker in ("embedded", "mosquitto"):
        # Devices know where this fleet's broker was; let it be there again.
        earlier = _read_port(state)
        if earlier is not None and port_is_free(options.host or "127.0.0.1", earlier):
            port = earlier
    handle: BrokerHandle = open_broker(
        broker,
        state_dir=state,
        host=options.host,
        port=port,
        admission_bytes=options.admission,
        part_size=options.part_size,
        users=_users(options.users) if options.users else None,
        tls=tls,
        ca_file=link.ca_file,
    )
    return handle


def _port_file(state: Path) -> Path:
    return state / "broker" / "port"


def _read_port(state: Path) -> int | None:
    try:
        return int(_port_file(state).read_text())
    except (FileNotFoundError, ValueError):
        return None


def _remember_port(state: Path, handle: BrokerHandle) -> None:
    _port_file(state).write_text(handle.public_url.rpartition(":")[2])


def _users(file: Path) -> dict[str, str]:
    """DEVICE:PASSWORD lines; empty ones and those that begin with # are left out."""
    users: dict[str, str] = {}
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        device, colon, password = line.strip().partition(":")
        if not (device and colon and password):
            raise UsageError(
                f"line {number} of {file}",
                why="it is not DEVICE:PASSWORD",
                repair="write one device a line",
            )
        users[device] = password
    return users


def _config(
    rounds: RoundOptions, algorithm: AlgorithmOptions, link: LinkOptions, handle: BrokerHandle
) -> FleetConfig:
    from kellet.server.config import FleetConfig

    return FleetConfig(
        fleet=link.fleet,
        algorithm=algorithm.make(),
        rounds=rounds.rounds,
        target=rounds.target,
        quorum=rounds.quorum,
        deadline=rounds.deadline,
        over_select=rounds.over_select,
        min_members=rounds.min_devices,
        member_ttl=rounds.member_ttl,
        seed=rounds.seed,
        part_size=handle.part_size,
        admission=handle.admission_bytes,
    )


def _own_url(handle: BrokerHandle) -> str:
    """The broker's address with the aggregator's own credentials."""
    from urllib.parse import quote

    if not handle.username:
        return handle.url
    secret = quote(handle.username, safe="")
    if handle.password:
        secret += ":" + quote(handle.password, safe="")
    return handle.url.replace("://", f"://{secret}@", 1)


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
    return ""
