"""The live part of the demo: rounds are run, devices come and go, and it is written down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kellet.sdk.errors import FleetError
from kellet.server.commands.rounds import RoundLog
from kellet.server.demo.chaos import Chaos
from kellet.server.demo.children import ENDED
from kellet.server.demo.fleet import SERVER, Fleet
from kellet.server.report.record import Event

__all__ = ["LiveRun", "run_live"]

TICK = 0.1  # s between two drawings of the display, and the longest wait for news
STANDSTILL = 120.0  # s without a round: something is wrong with this machine
LAST_WORDS = 5.0  # s from the aggregator's end to its summary
SETTLING = 45.0  # s that devices have to settle and end by themselves

# What a device is seen to do after each report.
_DOING = {
    "welcome": "ready",
    "idle": "ready",
    "fetched": "training",
    "trained": "sending",
    "settled": "ready",
    "abort": "ready",
    "link_lost": "offline",
    ENDED: "done",
}


@dataclass
class LiveRun:
    """What is known of a live run while it goes, and afterwards.

    ``doing``: what each device is seen to do. ``summary``: the aggregator's own.
    """

    began: float
    doing: dict[str, str]
    log: RoundLog
    events: list[Event] = field(default_factory=list)
    kills: int = 0
    restarts: int = 0
    peak_mb: float = 0.0
    open_round: int = 0
    finished: bool = False
    closed_at: dict[int, float] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def note(self, device: str, kind: str, round_: int = 0) -> None:
        self.events.append(Event(round(self.seconds, 3), device, kind, round_))


def run_live(
    fleet: Fleet,
    run: LiveRun,
    chaos: Chaos,
    *,
    tell: Callable[[str, Mapping[str, Any]], None],
    show: Callable[[], None],
) -> None:
    """Drive ``fleet`` until its rounds are done and every device has settled.

    ``tell`` hears what happens, as (kind, facts); ``show`` is called often. Raises
    ``FleetError`` where a process fails or nothing moves any more.
    """
    for device in fleet.devices:
        run.note(device, "started")
    driver = _Driver(fleet, run, chaos, tell, show)
    while not run.finished:
        driver.turn()
    driver.calm()
    deadline = time.monotonic() + SETTLING
    while any(run.doing[device] != "done" for device in fleet.devices):
        driver.turn()
        if time.monotonic() > deadline:
            break  # what is not settled is in the ledger all the same: the audit knows it
    fleet.stop(fleet.devices)
    fleet.stop([SERVER])
    deadline = time.monotonic() + LAST_WORDS
    while not run.summary:
        driver.turn()
        if time.monotonic() > deadline:
            raise FleetError(
                "the aggregator did not end in order", repair="see server/log.txt in the state"
            )
    show()


class _Driver:
    """Takes reports and the chaos's decisions one by one."""

    def __init__(
        self,
        fleet: Fleet,
        run: LiveRun,
        chaos: Chaos,
        tell: Callable[[str, Mapping[str, Any]], None],
        show: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._run = run
        self._chaos = chaos
        self._tell = tell
        self._show = show
        self._moved = self._shown = time.monotonic()

    def turn(self) -> None:
        """Wait for a report or a deed of chaos, for a short while."""
        now = time.monotonic()
        heard = self._fleet.next(min(now + TICK, self._chaos.wake))
        if heard is not None:
            name, facts = heard
            if name == SERVER:
                self._server(facts)
            else:
                self._device(name, facts)
        if time.monotonic() - self._shown >= TICK:
            self._shown = time.monotonic()
            self._show()
        if not self._run.finished:
            self._disturb(time.monotonic())
            if time.monotonic() - self._moved > STANDSTILL:
                raise FleetError(
                    f"no round has closed for {STANDSTILL:.0f} s",
                    why="this machine may be too busy, or the broker does not deliver",
                    repair="look at the log.txt of server and devices in the --state directory",
                )

    def calm(self) -> None:
        """The rounds are done: everyone comes back, to learn what became of its last update."""
        for device in self._chaos.calm():
            self._restart(device)

    def _disturb(self, now: float) -> None:
        for device in self._chaos.kills(now):
            if self._fleet.kill(device):
                self._run.kills += 1
                self._run.doing[device] = "killed"
                self._run.note(device, "killed", self._run.open_round)
                self._tell("killed", {"device": device, "round": self._run.open_round})
        for device in self._chaos.returns(now):
            self._restart(device)

    def _restart(self, device: str) -> None:
        self._fleet.start_device(device)
        self._run.restarts += 1
        self._run.doing[device] = "starting"
        self._run.note(device, "restarted", self._run.open_round)
        self._tell("restarted", {"device": device, "round": self._run.open_round})

    def _server(self, facts: dict[str, Any]) -> None:
        run = self._run
        match facts["event"]:
            case "round_opened":
                run.open_round = facts["round"]
                self._chaos.round_opened(facts["round"], time.monotonic())
            case "round":
                self._moved = time.monotonic()
                run.closed_at[facts["round"]] = round(run.seconds, 3)
                run.log.closed(facts)
                self._tell("round", facts)
            case "evaluated":
                run.log.annotate(facts)
                self._tell("evaluated", facts)
            case "finished":
                run.finished = True
            case "summary":
                run.summary = facts

    def _device(self, device: str, facts: dict[str, Any]) -> None:
        run, kind = self._run, facts["event"]
        if run.doing[device] == "killed":
            return  # its last words, or the end that we gave it
        run.doing[device] = _DOING.get(kind, run.doing[device])
        if kind == "settled":
            run.peak_mb = max(run.peak_mb, facts["peak_mb"])
            run.note(device, "counted" if facts["counted"] else "refused", facts["round"])
        elif kind == "trained":
            run.note(device, "trained", facts["round"])
        elif kind == ENDED:
            run.note(device, "stopped")
