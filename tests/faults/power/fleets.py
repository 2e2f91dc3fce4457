"""A whole fleet of the product's machines, whose disks lose power at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from faults.power.cuts import Cut, Outcome, try_cuts, wrong_databases
from faults.power.history import History, recorded
from machines.network import Fleet
from machines.personal import PersonalFleet, PersonalNode
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import KelletError
from kellet.sdk.personal import Ditto

__all__ = ["FLEETS", "Recorded", "cut_fleet", "record"]

PLAN = softmax_regression(2, 3, initial=np.linspace(-1, 1, 9))
DATA = {"a": np.array([[1, 0], [-1, 2]]), "b": np.array([[2, 3], [1, 5], [0.5, -1]])}
FLEETS: dict[str, dict[str, Any]] = {
    "derived": {"algorithm": Scaffold(local_lr=0.3, batch_size=1)},
    "feedback on both ways": {
        "algorithm": Scaffold(local_lr=0.3, batch_size=1, delta_c="q8"),
        "uplink": ("q8",),
        "feedback": True,
        "downlink": "q8",
    },
    "topk": {
        "algorithm": FedAvg(local_lr=0.3, batch_size=1),
        "uplink": ("topk",),
        "share": 0.25,
        "feedback": True,
    },
    "personal models": {
        "kind": PersonalFleet,
        "algorithm": Scaffold(local_lr=0.3, batch_size=1),
        "personal": Ditto(0.5, epochs=2),
    },
}
DISKS = ("server-0", *(f"{name}-0" for name in DATA))

Ended = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """A fleet that ran to its end, what it did to its disks, and what it came to."""

    fleet: Fleet
    options: dict[str, Any]
    history: History
    ended: Ended


def record(root: Path, kind: type[Fleet] = Fleet, **options: Any) -> Recorded:
    """Run three rounds without faults. ``options``: those of the ``kind`` of ``Fleet``."""
    with recorded(root, DISKS) as history:
        fleet = kind(root, PLAN, DATA, rounds=3, **options)
        ended = _finish(fleet)
        _stop(fleet)
    return Recorded(fleet, options, history, ended)


def _finish(fleet: Fleet) -> Ended:
    """Run to the end, hold it to account, and say what it came to."""
    fleet.start().run()
    fleet.let_pass(60)
    fleet.check_end()
    server, ledger = fleet.server, fleet.server.ledger
    residual = ledger.residual()
    return {
        "model": server.machine.digest,
        "control": server.machine.control.integers(),
        "rounds": [(row.state, len(ledger.counted(row.round))) for row in ledger.rounds()],
        "left out": residual and server.blobs.get(residual),
        "devices": {
            name: (
                device.store.receipts(),
                device.store.packed_control(),
                device.store.residual(PLAN.id),
            )
            for name, device in fleet.devices.items()
        },
        "their own models": {
            name: v.tobytes()
            for name, device in fleet.devices.items()
            if isinstance(device, PersonalNode) and (v := device.personal()) is not None
        },
    }


def _remember(fleet: Fleet, before: Fleet) -> None:
    """The books, which lie on no disk, and the time."""
    fleet.now = before.now
    fleet.books.made.update(before.books.made)
    for name, device in fleet.devices.items():
        device.residuals.update(before.devices[name].residuals)


def _stop(fleet: Fleet) -> None:
    fleet.server.ledger.close()
    for device in fleet.devices.values():
        device.store.close()


def cut_fleet(recorded: Recorded, scratch: Path, *, count: int, seed: int) -> Outcome:
    """Cut, start everybody anew over what is left, and run on: it must come to the same bits."""

    def wrong(cut: Cut) -> Iterator[str]:
        yield from wrong_databases(recorded.history, scratch, cut)
        try:
            fleet = type(recorded.fleet)(scratch, PLAN, DATA, rounds=3, **recorded.options)
            _remember(fleet, recorded.fleet)
            try:
                ended = _finish(fleet)
            finally:
                _stop(fleet)
        except (AssertionError, KelletError) as error:
            yield f"{type(error).__name__}: {error}"
            return
        for what, value in recorded.ended.items():
            if ended[what] != value:
                yield f"another end: {what}"

    return try_cuts(recorded.history, scratch, wrong, count=count, seed=seed)
