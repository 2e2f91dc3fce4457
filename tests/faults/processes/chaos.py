"""Kill -9 and bad links, as a seed says: devices, broker, aggregator and the way between them.

A seed fixes who is hurt, how, and after how long; where exactly a process is by then is the
machine's affair, except where it dies at a named point of its own code.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

from support.fault_proxy import FaultProxy
from support.fleet import KILLED, Child, Fleet

__all__ = ["Chaos"]

SERVER = "aggregator"
PATIENCE = 150.0  # s without a round closed: the fleet is stuck

# Where a process may die by itself, at the count-th call.
DEVICE_POINTS = [
    ("GradientSession.step", "before", 20),
    ("Store.save_pending", "before", 2),
    ("Store.save_pending", "inside", 2),
    ("Store.save_pending", "after", 2),
    ("Store.settle", "before", 2),
    ("Store.settle", "inside", 2),
    ("Store.settle", "after", 2),
]
SERVER_POINTS = [
    ("Ledger.write_member", "inside", 3),
    ("Ledger.open_round", "before", 2),
    ("Ledger.open_round", "inside", 2),
    ("Ledger.open_round", "after", 2),
    ("Ledger.write_update", "before", 8),
    ("Ledger.write_update", "inside", 8),
    ("Ledger.write_update", "after", 8),
    ("Ledger.close_round", "before", 2),
    ("Ledger.close_round", "inside", 2),
    ("Ledger.close_round", "after", 2),
]


class Chaos:
    """Runs a fleet to its end and hurts it on the way; ``tally`` counts what was done.

    ``hurts``: how often, at most. The fleet is left in peace afterwards, and for its last round:
    whoever was still to die at a point is killed then. The time between two hurts is measured in
    starts of a process, so that a slow machine has the same fleet.
    """

    def __init__(self, fleet: Fleet, proxy: FaultProxy, seed: int, *, hurts: int) -> None:
        self._hurts = hurts
        self.tally: Counter[str] = Counter()
        self._fleet = fleet
        self._proxy = proxy
        self._luck = Random(f"chaos {seed}")
        self._children: dict[str, Child] = {}
        self._armed: dict[str, bool] = {}
        self._back_at: dict[str, float] = {}  # when a dead one is started again
        self._mend_at = 0.0
        self._unit = 1.0  # s

    def run(self) -> None:
        """Until the aggregator has finished and every device has ended well."""
        names = [SERVER, *self._fleet.clients]
        began = time.monotonic()
        for name in names:
            self._start(name, armed=self._luck.random() < 0.5)
        with suppress(AssertionError):  # it may die before
            self._children[SERVER].wait_for("ready")
        self._unit = (time.monotonic() - began) / 4
        self._watch(self._fleet.config["rounds"] - 1)
        self._mend()
        for name in names:
            if self._armed[name] and name not in self._back_at:
                self._kill(name)
            if name in self._back_at:
                self._start(name, armed=False)
        for name in names:
            assert self._children[name].end(PATIENCE) == 0, name

    @property
    def kills(self) -> int:
        """How often a process was killed, the broker's included."""
        return sum(count for what, count in self.tally.items() if "killed" in what)

    def _watch(self, last: int) -> None:
        """Hurt the fleet, until round ``last`` is closed at most."""
        began, closed = time.monotonic(), 0
        hurt_at = began + self._unit
        while closed < last and self._hurts:
            time.sleep(0.02)
            now = time.monotonic()
            self._bury(now)
            if now >= self._mend_at:
                self._mend()
            if now >= hurt_at:
                self._hurts -= 1
                self._hurt(now)
                hurt_at = now + self._unit * self._luck.uniform(0.1, 1.5)
            if (seen := self._closed()) > closed:
                began, closed = now, seen
            assert now - began < PATIENCE, f"stuck after round {closed}: {dict(self.tally)}"

    def _closed(self) -> int:
        try:
            return len(self._fleet.ledger.models())
        except sqlite3.OperationalError:  # the ledger has not been founded
            return 0

    def _bury(self, now: float) -> None:
        """Notice who died at its point, and start again whose time has come."""
        for name, child in self._children.items():
            if name not in self._back_at and not child.alive:
                code = child.end()
                assert code == KILLED, f"{name} ended with {code}"
                assert self._armed[name], f"{name} was killed by nobody"
                self.tally[f"{_kind(name)} killed at a point"] += 1
                self._back_at[name] = now + self._luck.uniform(0, 0.5)
        for name, at in list(self._back_at.items()):
            if now >= at:
                self._start(name, armed=self._luck.random() < 0.5)

    def _hurt(self, now: float) -> None:
        match self._luck.choices(
            ["device", SERVER, "broker", "cut", "slow", "hole", "puback"], [6, 2, 2, 2, 1, 1, 1]
        )[0]:
            case "device":
                self._kill(self._luck.choice(list(self._fleet.clients)))
            case "aggregator":
                self._kill(SERVER)
            case "broker":
                pid = self._fleet.broker.pid
                if pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.tally["broker killed"] += 1
            case "cut":
                self._proxy.cut()
                self.tally["links cut"] += 1
            case link:
                self._mend_at = now + self._luck.uniform(0.2, 1.0)
                self._proxy.rate_up = 20_000.0 if link == "slow" else None
                self._proxy.black_hole = link == "hole"
                self._proxy.drop_puback = link == "puback"
                self.tally[f"links bad ({link})"] += 1

    def _mend(self) -> None:
        """The links are good again. A stream that has a gap cannot go on."""
        gap = self._proxy.black_hole or self._proxy.drop_puback
        self._proxy.rate_up, self._proxy.black_hole, self._proxy.drop_puback = None, False, False
        self._mend_at = float("inf")
        if gap:
            self._proxy.cut()

    def _kill(self, name: str) -> None:
        if name in self._back_at or not self._children[name].alive:
            return
        self._children[name].kill()
        self.tally[f"{_kind(name)} killed"] += 1
        self._back_at[name] = time.monotonic() + self._luck.uniform(0, 0.5)

    def _start(self, name: str, *, armed: bool) -> None:
        self._back_at.pop(name, None)
        self._armed[name] = armed
        spec: dict[str, Any] = {}
        if armed:
            points = SERVER_POINTS if name == SERVER else DEVICE_POINTS
            at, when, most = self._luck.choice(points)
            spec["die"] = {"at": at, "when": when, "count": self._luck.randint(1, most)}
        if name == SERVER:
            # It stays for those who were killed while it said that it had finished.
            child = self._fleet.aggregator(options={"linger": 6.0}, **spec)
        else:
            child = self._fleet.device(name, broker=self._proxy.url, **spec)
        self._children[name] = child


def _kind(name: str) -> str:
    return name if name == SERVER else "device"
