"""Personal models of real devices over MQTT: a simulation's bits, and never half a model."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from processes.conftest import samples
from support.fleet import KILLED, MakeFleet
from support.toy_plans import softmax_regression

from kellet.sdk import algorithms
from kellet.server import History, simulate

FEDAVG = {"name": "fedavg", "local_lr": 0.1, "local_steps": 5, "batch_size": 8}
DITTO = "ditto:0.5,steps=7"
HOLDOUT = {"holdout": 0.25}


@cache
def simulated(names: str, rounds: int) -> History:
    return simulate(
        softmax_regression(6, 3),
        samples(names),
        algorithms.make(**FEDAVG),
        rounds=rounds,
        seed=5,
        personal=DITTO,
        holdout=0.25,
        keep_models=True,
    )


def test_devices_have_a_simulations_bits(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a b", algorithm=FEDAVG, rounds=3, personal=DITTO)
    aggregator = fleet.aggregator()
    devices = [fleet.device(name, options=HOLDOUT) for name in fleet.clients]
    assert [child.end() for child in (*devices, aggregator)] == [0, 0, 0]
    expected = simulated("a b", 3)
    assert fleet.ledger.models() == [record.model for record in expected.rounds]
    for name in fleet.clients:
        assert np.array_equal(fleet.disk(name).personal(), expected.personal[name])
    for record in expected.rounds:
        told = fleet.ledger.summary(record.round)
        for fact in ("holdout_loss", "holdout_accuracy_worst", "personal_loss"):
            assert told[fact] == getattr(record, fact)
        assert told["personal_accuracy"] == record.personal_accuracy
        assert told["personal_accuracy_worst"] == record.personal_accuracy_worst
    trained = devices[0].reports("trained")
    assert [report["personal_steps"] for report in trained] == [7, 7, 7]


def test_who_opts_out_has_none_and_tells_nothing(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a b", algorithm=FEDAVG, rounds=2, personal=DITTO)
    aggregator = fleet.aggregator()
    one = fleet.device("a", options=HOLDOUT)
    other = fleet.device("b", options={**HOLDOUT, "personal": False})
    assert [child.end() for child in (one, other, aggregator)] == [0, 0, 0]
    assert fleet.disk("b").personal() is None
    assert all("personal_steps" not in report for report in other.reports("trained"))
    headers = fleet.ledger.headers(2)
    assert headers["b"]["holdout_samples"] == 5
    assert not {"personal_loss", "personal_accuracy"} & headers["b"].keys()
    told = fleet.ledger.summary(2)
    assert told["personal_loss"] == headers["a"]["personal_loss"]
    # The fleet's model is the same, whoever makes one of his own.
    assert fleet.ledger.models() == [record.model for record in simulated("a b", 2).rounds]


# The first round has 5 steps of the fleet's model and 7 of its own; so has each that is trained.
DEATHS: list[dict[str, Any]] = [
    {"at": "GradientSession.step", "when": "before", "count": 9},
    {"at": "Shelf.save", "when": "before"},
    {"at": "Shelf.save", "when": "inside"},
    {"at": "Shelf.save", "when": "after"},
    {"at": "Store.save_pending", "when": "inside"},
    {"at": "Store.save_pending", "when": "after"},
]


def test_killed_anywhere_it_has_the_old_model_or_the_new(make_fleet: MakeFleet) -> None:
    rounds = 4
    fleet = make_fleet("a", algorithm=FEDAVG, rounds=rounds, personal=DITTO)
    models = [simulated("a", r + 1).personal["a"].tobytes() for r in range(rounds)]
    aggregator = fleet.aggregator()
    held = []
    for death in DEATHS:
        assert fleet.device("a", options=HOLDOUT, die=death).end() == KILLED
        v = fleet.disk("a").personal()
        held.append(-1 if v is None else models.index(v.tobytes()))
    # Killed before v was on the disk it has none; then each death leaves one that was whole.
    assert held[:4] == [-1, -1, -1, 0]
    assert held == sorted(held)
    last = fleet.device("a", options=HOLDOUT)
    assert [last.end(), aggregator.end()] == [0, 0]
    v = fleet.disk("a").personal()
    assert v is not None
    assert v.tobytes() == models[-1]
    assert fleet.ledger.models() == [record.model for record in simulated("a", rounds).rounds]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_every_step(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a", algorithm=FEDAVG, rounds=1, personal=DITTO)
    aggregator = fleet.aggregator()
    for count in range(1, 13):
        die = {"at": "GradientSession.step", "when": "before", "count": count}
        assert fleet.device("a", options=HOLDOUT, die=die).end() == KILLED
        assert fleet.disk("a").personal() is None
    assert [fleet.device("a", options=HOLDOUT).end(), aggregator.end()] == [0, 0]
    expected = simulated("a", 1).personal["a"]
    assert np.array_equal(fleet.disk("a").personal(), expected)
