"""Fleets whose devices share a process, and the memory that others take meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import psutil
from support.fleet import Child, Clients, Fleet

from kellet.sdk import algorithms
from kellet.server import FleetConfig
from kellet.server.sums import ExactSum

__all__ = ["MB", "Crowd", "Watch", "linear_clients", "peak"]

MB = 1 << 20
_PERIOD = 0.05  # s


def linear_clients(count: int, parameters: int) -> Clients:
    """``count`` clients of ``linear_loss``, each with one sample of its own."""
    clients = {}
    for number in range(count):
        numbers = np.random.default_rng(number)
        x = numbers.standard_normal((1, parameters)).astype(np.float32)
        clients[f"d{number:04}"] = (x, np.zeros(1, np.int64))
    return clients


class Crowd:
    """All devices of ``fleet`` in one process, over ``links`` connections."""

    def __init__(self, fleet: Fleet, *, links: int, pause: float = 0.0) -> None:
        self._fleet = fleet
        self._sum = fleet.folder / "crowd.sum"
        self.child: Child = fleet.start(
            "faults.processes.run_crowd",
            "crowd",
            {
                "devices": list(fleet.clients),
                "links": links,
                "pause": pause,
                "broker": fleet.broker.url,
                "plan": str(fleet.plan_file),
                "data": str(fleet.folder),
                "sum": str(self._sum),
            },
        )

    def end(self, timeout: float = 60.0) -> dict[str, Any]:
        """Wait for its end; what it did in all."""
        assert self.child.end(timeout) == 0
        return self.child.reports("over")[0]

    def check(self) -> None:
        """Everything is as in the simulation, each update once, C the sum of the controls."""
        fleet = self._fleet
        expected = fleet.undisturbed.rounds
        assert fleet.ledger.models() == [each.model for each in expected]
        self.check_once(len(expected))

    def check_once(self, rounds: int) -> None:
        """Each device counted once in each round, and C is the sum of their controls."""
        fleet = self._fleet
        assert fleet.ledger.counted() == [
            (round_, name) for round_ in range(1, rounds + 1) for name in sorted(fleet.clients)
        ]
        config = FleetConfig(algorithm=algorithms.make(**fleet.algorithm), **fleet.config)
        control = fleet.ledger.control(fleet.plan, config)
        committed = ExactSum.load(self._sum.read_bytes())
        assert np.array_equal(control.lo, committed.lo)
        assert np.array_equal(control.hi, committed.hi)


class Watch:
    """The resident bytes of processes, looked at twenty times a second: {name: [bytes, ...]}."""

    def __init__(self, **pids: int) -> None:
        self.resident: dict[str, list[int]] = {name: [] for name in pids}
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_PERIOD):
            for name, process in self._processes.items():
                try:
                    self.resident[name].append(process.memory_info().rss)
                except psutil.NoSuchProcess:
                    return


def peak(pid: int) -> int:
    """The most bytes that a living process has had in memory (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [each for each in status.splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1]) * 1024
