"""``kellet run``: a device as a process."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import App, Parameter, Token

from kellet.sdk.commands.functions import data_function, load_algorithms
from kellet.sdk.commands.link import LinkOptions
from kellet.sdk.commands.options import Folder, called_by_options
from kellet.sdk.config import chosen_profile, read_config
from kellet.sdk.console import Console
from kellet.sdk.errors import UsageError
from kellet.sdk.signals import orderly_stop

if TYPE_CHECKING:
    from cyclopts import ArgumentCollection
    from rich.console import RenderableType

    from kellet.sdk.protocol.effects import Report

__all__ = ["command"]

_Value = TypeVar("_Value")
_FOR_EXAMPLE = {
    "device": "a name that no other device has",
    "broker": "mqtt://HOST:PORT, or set KELLET_BROKER",
    "data": "MODULE:FUNCTION",
    "state": "a directory that outlives restarts",
}


def _from_file(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Let the file that --config names stand in for the options that are not given."""
    options = {each.name.lstrip("-").lower().replace("-", "_"): each for each in arguments}
    if not options["config"].tokens:
        return
    path = options["config"].tokens[0].value
    for key, value in read_config(Path(path)).options.items():
        if not options[key].tokens:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            options[key].append(Token(keyword=key, value=text, source=path))


def _needed(value: _Value | None, key: str, file: Path | None) -> _Value:
    """What the command or the file says of ``key``; ``UsageError`` where neither does."""
    if value is not None:
        return value
    why = "a device cannot take part without it"
    if file is not None:
        raise UsageError(
            f"{file} has no {key}",
            why=f"{why}, and the command does not give it",
            repair=f'write {key} = "..." above the tables of {file}; {_FOR_EXAMPLE[key]}',
        )
    raise UsageError(
        f"{'DEVICE' if key == 'device' else '--' + key} is not given",
        why=why,
        repair=f"give {_FOR_EXAMPLE[key]}, or a kellet.toml by --config; see kellet run --help",
    )


command = App(name="run", config=_from_file, usage="Usage: kellet run [OPTIONS] [DEVICE]")


@command.default
def run(
    device: str | None = None,
    /,
    *,
    broker: Annotated[str | None, Parameter(env_var="KELLET_BROKER")] = None,
    data: str | None = None,
    algorithms: str | None = None,
    state: Folder | None = None,
    until_finished: bool = False,
    leave: bool = False,
    holdout: float = 0.0,
    no_personal: bool = False,
    share_histogram: Literal["none", "labels", "labels+features"] = "none",
    histogram_epsilon: float | None = None,
    profile: str | None = None,
    config: Path | None = None,
    link: LinkOptions | None = None,
    json: bool = False,
) -> None:
    """Take part in a fleet as a device.

    Trains on this machine's own data when the aggregator asks, and sends what it
    learned. Stop it at any time, by Ctrl-C or by pulling the plug: started again
    with the same --state it goes on, and nothing is counted twice.

    DEVICE, --broker, --data and --state are needed, here or in the file of --config.

    Parameters
    ----------
    device
        This device's id: letters, digits, - and _.
    broker
        Address of the broker: mqtt://HOST:PORT or mqtts://USER:PASSWORD@HOST:PORT.
        The variable KELLET_BROKER serves too, and keeps a password off the process list.
    data
        MODULE:FUNCTION, called with the device's id, returns this device's (x, y).
    algorithms
        A module that registers algorithms of your own, as the aggregator has it, too.
    state
        Directory with the device's control variate and outbox. It must outlive the process.
    until_finished
        End when the aggregator says that its rounds are done.
    leave
        Settle what is pending, take this device out of the fleet, and end.
    holdout
        Share of the data that is kept aside to judge the models that come.
    no_personal
        Make no model of this device's own, though the aggregator says how.
    share_histogram
        What the aggregator may know of this device's data, if it asks: how many samples there are
        of each label, and in which ranges their features lie.
    histogram_epsilon
        Add noise to that first: the epsilon of its differential privacy, the less the more private.
    profile
        What a device of this class can do: a profile's name, or the path of its .toml file.
        This board's, unless given.
    config
        A kellet.toml, as `kellet init` writes it, for what is not given here.
    json
        Report in JSON lines.
    """
    device = _needed(device, "device", config)
    broker = _needed(broker, "broker", config)
    data = _needed(data, "data", config)
    state = _needed(state, "state", config)
    if broker in ("embedded", "mosquitto"):
        raise UsageError(
            f"--broker {broker}",
            why="that is a broker which `kellet server` starts; a device needs its address",
            repair="give mqtt://HOST:PORT, as `kellet server` prints it",
        )
    settings = read_config(config) if config else None
    if settings:
        sys.path.append(str(settings.path.absolute().parent))  # its data function may lie there
    load = data_function(data)
    if algorithms:
        load_algorithms(algorithms, "--algorithms")
    chosen, why = chosen_profile(profile, settings)
    from kellet.sdk.runner import Device

    link = link or LinkOptions()
    with Console(json=json) as console:
        teller = _Teller(console, device)
        with called_by_options():
            instance = Device(
                device,
                broker=broker,
                data=load,
                state=state,
                fleet=link.fleet,
                holdout=holdout,
                personal=not no_personal,
                share_histogram=share_histogram,
                histogram_epsilon=histogram_epsilon,
                profile=chosen,
                on_report=teller.tell,
                **link.for_link(),
            )
        started = {"device": device, "fleet": link.fleet, "profile": chosen.name, "why": why}
        console.event("started", started)
        console.say(f"{device}: profile {chosen.name}, {why}")
        console.say(f"{device}: looking for a fleet at {_without_password(broker)}")
        with orderly_stop(instance.stop):
            instance.run(until_finished=until_finished, leave=leave)
        console.say(f"{device}: {teller.ending()}")


class _Teller:
    """Puts a device's reports into words, and keeps the line that sums it up."""

    def __init__(self, console: Console, device: str) -> None:
        self._console = console
        self._device = device
        self._doing = "waiting for a round"
        self._counted = self._refused = 0
        self._peak = 0.0

    def tell(self, report: Report) -> None:
        facts = report.data
        self._console.event(report.kind, facts)
        self._note(report.kind, facts)
        text = _words(report.kind, facts)
        if text:
            self._console.say(f"{time.strftime('%H:%M:%S')} {text}")
        self._console.show(self._line)

    def ending(self) -> str:
        return f"done; {self._counted} updates counted, {self._refused} not"

    def _note(self, kind: str, facts: dict[str, Any]) -> None:
        if kind == "settled":
            self._counted += bool(facts["counted"])
            self._refused += not facts["counted"]
            self._peak = facts.get("peak_mb", self._peak)
        doing = _DOING.get(kind)
        if doing:
            self._doing = doing.format(**facts)

    def _line(self) -> RenderableType:
        from rich.text import Text

        return Text.assemble(
            (self._device, "bold"),
            f"  {self._doing}  ",
            (f"{self._counted} counted", "green"),
            f", {self._refused} not",
            (f"  {self._peak:.0f} MB" if self._peak else "", "dim"),
        )


_DOING = {
    "welcome": "waiting for a round",
    "idle": "idle: the aggregator is {reason}",
    "fetched": "training",
    "trained": "sending round {round}",
    "settled": "waiting for a round",
    "link_lost": "no link to the broker, trying again",
    "declined": "not training: {reason}",
}


def _words(kind: str, facts: dict[str, Any]) -> str:
    """One line about a report; empty where people need none."""
    match kind:
        case "welcome":
            return f"in touch with the aggregator, control epoch {facts['epoch']}"
        case "trained":
            return (
                f"round {facts['round']}: {facts['steps']} steps, loss {facts['loss']:.4f}, "
                f"drift {facts['drift']:.3f}{_own(facts)}"
            )
        case "settled" if facts["counted"]:
            return f"round {facts['round']}: counted"
        case "settled":
            return f"round {facts['round']}: not counted ({facts['reason']})"
        case "abort":
            return f"round {facts['round']}: given up: {facts['reason']}"
        case "link_lost":
            return f"the link is lost: {facts['reason']}; trying again"
        case "idle":
            return f"the aggregator is {facts['reason']}"
        case "epoch":
            return f"a new control epoch, {facts['epoch']}: the control variate starts at zero"
        case "enrolled_anew":
            return f"enrolled anew: {facts['why']}"
        case "declined":
            return f"round {facts['round']}: not training, as {facts['reason']}"
        case "histogram" if facts["new"]:
            noise = ", without noise"
            if facts["epsilon"] is not None:
                spent = f"{facts['epsilon_spent']:g} in all so far"
                noise = f", with noise of epsilon {facts['epsilon']:g}; {spent}"
            return f"telling the aggregator this device's {facts['shares']} histogram{noise}"
        case "histogram" if not facts["answers"]:
            return "the aggregator asks another question; noise is drawn once, and not for it"
        case "cannot_hold":
            return f"cannot hold {facts['condition']}"
        case "refused":
            return f"a message was refused: {facts['error']}"
    return ""


def _own(facts: dict[str, Any]) -> str:
    """What became of the device's own model; empty where none is made."""
    if "personal_steps" in facts:
        return f"; its own model {facts['personal_steps']} steps, loss {facts['personal_loss']:.4f}"
    return f"; its own model was not trained: {facts['personal']}" if "personal" in facts else ""


def _without_password(broker: str) -> str:
    scheme, separator, rest = broker.partition("://")
    return scheme + separator + rest.rpartition("@")[2]
