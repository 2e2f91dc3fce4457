"""Fleets that every engine has to bring to the same end, and clients that go wrong."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing import parent_process
from typing import Any

import numpy as np

from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold, make
from kellet.sdk.errors import DataError
from kellet.server.history import History
from kellet.server.simulate import simulate

__all__ = ["CASES", "assert_same", "broken", "clients", "killed", "run"]

FEATURES, CLASSES = 43, 6  # of the built-in plan wisdm
LOCAL: dict[str, Any] = {"local_lr": 0.05, "batch_size": 8, "local_steps": 3}

CASES: dict[str, tuple[FedAvg, dict[str, Any]]] = {
    "fedavg, adam, tested": (FedAvg(**LOCAL), {"server_optimizer": "adam", "judged": True}),
    "fedprox, topk with feedback": (
        FedProx(mu=0.1, **LOCAL),
        {"uplink": "topk", "share": 0.1, "feedback": True},
    ),
    "scaffold, two int8 schemes, coded both ways": (
        Scaffold(**LOCAL),
        {
            "scheme": {"client-1": "w8.row", "client-2": "w8.block64"},
            "uplink": {"client-3": "q8"},
            "downlink": "q8",
        },
    ),
    "scaffold, personal models": (Scaffold(**LOCAL), {"holdout": 0.2, "personal": "ditto:0.1"}),
}


def clients(number: int = 7) -> dict[str, tuple[Any, Any]]:
    """Clients of the plan wisdm, of different sizes, whose labels follow one rule."""
    rng = np.random.default_rng(5)
    rule = rng.normal(size=(FEATURES, CLASSES))
    found = {}
    for client in range(number):
        x = rng.normal(0.2 * client, 1, (20 + 5 * client, FEATURES)).astype(np.float32)
        found[f"client-{client}"] = (x, (x @ rule).argmax(axis=1).astype(np.int64))
    return found


def run(algorithm: FedAvg, *, judged: bool = False, rounds: int = 4, **options: Any) -> History:
    """Some rounds of three clients each, out of seven."""
    return simulate(
        "wisdm",
        clients(),
        algorithm,
        rounds=rounds,
        cohort=3,
        seed=11,
        test=clients(9)["client-8"] if judged else None,
        **options,
    )


def own(name: str) -> FedAvg:
    """An algorithm of a user's module (examples/own), which must be on the path."""
    __import__(name)
    return make(name, **LOCAL)


def assert_same(one: History, other: History) -> None:
    """Every bit of what two engines came to."""
    assert one.digest == other.digest
    assert one.control_gap == other.control_gap == 0
    assert one.rounds == other.rounds  # who was asked and counted, and every byte that travelled
    assert (one.updates_counted, one.updates_refused) == (12, 0)
    assert (other.updates_counted, other.updates_refused) == (12, 0)
    assert one.model.tobytes() == other.model.tobytes()
    assert one.c.tobytes() == other.c.tobytes()
    assert list(one.c_i) == list(other.c_i)
    assert all(one.c_i[name].tobytes() == other.c_i[name].tobytes() for name in one.c_i)
    assert one.clients == other.clients


def killed(round_: int, client: str, planned: int) -> int:
    """A client whose worker is killed in the second round, as by a system out of memory."""
    if round_ == 2 and (parent_process() or "ray" in sys.modules):
        os.kill(os.getpid(), signal.SIGKILL)
    return planned


def broken(round_: int, client: str, planned: int) -> int:
    raise DataError(f"{client} has lost its data", repair="bring it back")
