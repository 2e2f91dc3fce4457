"""A fleet of real processes for tests: broker, aggregator, devices, and what they must come to."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pytest
from support.on_disk import DeviceDisk, LedgerDisk, audit, gap
from support.processes import KILLED, Child

from kellet import kernels
from kellet.sdk import Plan, algorithms
from kellet.server import FleetConfig, History, simulate
from kellet.server.brokers import BrokerHandle

__all__ = ["KILLED", "Child", "Clients", "Fleet", "MakeFleet", "needs_mosquitto"]

HAS_MOSQUITTO = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
needs_mosquitto = pytest.mark.skipif(not HAS_MOSQUITTO, reason="mosquitto is not installed")

Clients = Mapping[str, tuple[np.ndarray, np.ndarray]]


class Fleet:
    """Processes over ``folder``: the aggregator's state in ``server``, each device's in its name.

    ``algorithm``: its name and hyperparameters. ``config``: fields of ``FleetConfig``;
    by default every client belongs to every round, so that what the fleet comes to is
    what ``simulate`` does; ``personal`` is a text.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        clients: Clients,
        *,
        broker: BrokerHandle,
        algorithm: Mapping[str, Any],
        **config: Any,
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.clients = clients
        self.broker = broker
        self.algorithm = dict(algorithm)
        everyone = len(clients)
        self.config: dict[str, Any] = {
            "target": everyone,
            "quorum": everyone,
            "min_members": everyone,
            "over_select": 1.0,
            "deadline": 600.0,
            "part_size": broker.part_size,
            "admission": broker.admission_bytes,
            "seed": 5,
            **config,
        }
        self.ledger = LedgerDisk(folder / "server")
        self._children: list[Child] = []
        self.plan_file = folder / "toy.kplan"
        self.plan_file.write_bytes(plan.raw)
        for name, (x, y) in clients.items():
            np.savez(folder / f"{name}.npz", x=x, y=y)

    # -- processes ----------------------------------------------------------------

    def aggregator(self, *, broker: str = "", state: str = "server", **spec: Any) -> Child:
        """Start an aggregator; further keys are those of ``run_aggregator`` and ``serve``."""
        spec["options"] = {"linger": 0.5, **spec.get("options", {})}
        return self.start(
            "support.run_aggregator",
            "aggregator",
            {
                "plan": str(self.plan_file),
                "broker": broker or self.broker.url,
                "state": str(self.folder / state),
                "algorithm": self.algorithm,
                "config": self.config,
                **spec,
            },
        )

    def device(
        self,
        name: str,
        *,
        broker: str = "",
        state: str = "",
        python: Sequence[str] = (sys.executable,),
        **spec: Any,
    ) -> Child:
        """Start a device; further keys are those of ``run_device`` and ``serve``."""
        return self.start(
            "support.run_device",
            name,
            {
                "device": name,
                "broker": broker or self.broker.url,
                "state": str(self.folder / (state or name)),
                "data": str(self.folder / f"{name}.npz"),
                **spec,
            },
            python=python,
        )

    def devices(self) -> dict[str, Child]:
        """Start every device."""
        return {name: self.device(name) for name in self.clients}

    def start(self, module: str, name: str, spec: dict[str, Any], **options: Any) -> Child:
        """Start any module that ends with ``support.child.serve``."""
        spec["options"] = {"separate_bulk": self.broker.separate_bulk, **spec.get("options", {})}
        child = Child(module, spec, self.folder / f"{name}.log", **options)
        self._children.append(child)
        return child

    def close(self) -> None:
        for child in self._children:
            child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- what must hold -------------------------------------------------------------

    @cached_property
    def undisturbed(self) -> History:
        """The same fleet, seed and rounds in simulation, where nothing goes wrong."""
        return simulate(
            self.plan,
            self.clients,
            algorithms.make(**self.algorithm),
            rounds=self.config["rounds"],
            seed=self.config["seed"],
        )

    def disk(self, name: str) -> DeviceDisk:
        """A device's state directory."""
        return DeviceDisk(self.folder / name, self.plan.n_train)

    def gap(self, *names: str) -> int:
        """The control gap over these state directories (all devices'), nobody running."""
        settings = {name: value for name, value in self.config.items() if name != "personal"}
        config = FleetConfig(algorithm=algorithms.make(**self.algorithm), **settings)
        disks = [self.disk(name) for name in names or self.clients]
        return gap(self.ledger, disks, self.plan, config)

    def check_control(self, name: str) -> None:
        """A dead device's c_i is, to the bit, what the ledger has counted from it."""
        expected, counted = self.ledger.membership(name)
        assert audit(self.disk(name).control(counted)) == expected

    def check_undisturbed(self) -> None:
        """It all came to what it would have without faults: each bit, each update once."""
        expected = self.undisturbed
        rounds = [record.round for record in expected.rounds]
        assert self.ledger.models() == [record.model for record in expected.rounds]
        assert self.ledger.rounds() == [(round_, "closed") for round_ in rounds]
        assert self.ledger.counted() == [
            (round_, name) for round_ in rounds for name in sorted(self.clients)
        ]
        for name in self.clients:
            receipts = self.disk(name).receipts()
            assert [(r.seq, r.round, r.counted) for r in receipts] == [
                (seq, round_, True) for seq, round_ in enumerate(rounds, 1)
            ]
            assert not self.disk(name).pending()
            stored = kernels.from_grid(self.disk(name).control())
            assert stored.tobytes() == expected.c_i[name].tobytes()
        assert self.gap() == 0


MakeFleet = Callable[..., Fleet]
