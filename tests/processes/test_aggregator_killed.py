"""An aggregator that is killed at any moment finishes its round with the same bits."""

from __future__ import annotations

import random
import time
from typing import Any

from support.fault_proxy import FaultProxy
from support.fleet import KILLED, Fleet, MakeFleet
from support.processes import wait_until

from kellet.sdk import Plan
from kellet.sdk.plan import export_model
from kellet.sdk.transport.url import parse_url

PART = 1024

# Where it is killed, one life after the other. A method of the ledger: that call in this life.
DEATHS: list[str | dict[str, Any]] = [
    {"at": "Ledger.found", "when": "inside"},
    {"at": "Ledger.found", "when": "after"},
    {"at": "Ledger.write_member", "when": "inside", "count": 2},
    {"at": "Ledger.open_round", "when": "before"},
    {"at": "Ledger.open_round", "when": "inside"},
    {"at": "Ledger.open_round", "when": "after"},  # and nobody has heard of it
    {"at": "Ledger.write_update", "when": "before"},  # its bytes are here, its row is not
    {"at": "Ledger.write_update", "when": "inside", "count": 2},
    {"at": "Ledger.write_update", "when": "after"},  # counted, and no receipt has left
    "while parts arrive",
    {"at": "Ledger.close_round", "when": "before"},  # all were counted
    {"at": "Ledger.close_round", "when": "inside"},
    {"at": "Ledger.close_round", "when": "after"},  # the next is not announced
    "some time",
    "some time",
]


def test_killed_at_fifteen_moments(make_fleet: MakeFleet, wide_plan: Plan) -> None:
    fleet = make_fleet("a b c", plan=wide_plan, rounds=10, part_size=PART)
    chance = random.Random("deaths of the aggregator")
    with FaultProxy(parse_url(fleet.broker.url).port) as slow:
        devices = [fleet.device("a"), fleet.device("b"), fleet.device("c", broker=slow.url)]
        for death in DEATHS:
            _die(fleet, death, slow, chance)
        last = fleet.aggregator()
        assert last.end() == 0
        assert [device.end() for device in devices] == [0, 0, 0]
    assert last.reports("restored") == []
    fleet.check_undisturbed()


def _die(
    fleet: Fleet, death: str | dict[str, Any], slow: FaultProxy, chance: random.Random
) -> None:
    match death:
        case "some time":
            aggregator = fleet.aggregator()
            aggregator.wait_for("returned")
            time.sleep(chance.uniform(0, 0.3))
            aggregator.kill()
        case "while parts arrive":
            slow.rate_up = 8_000.0
            aggregator = fleet.aggregator()
            wait_until(lambda: _arriving(fleet))
            aggregator.kill()
            assert _arriving(fleet)
            slow.rate_up = None
        case _:
            assert fleet.aggregator(die=death).end() == KILLED


def _arriving(fleet: Fleet) -> bool:
    """Whether some parts of the slow device's update are here, and others are not."""
    uid = fleet.disk("c").pending()
    here, parts = (0, 0) if uid is None else fleet.ledger.arrived(uid, PART)
    return 0 < here < parts


def test_a_full_round_closes_without_a_word_from_its_devices(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a b", rounds=1)
    devices = fleet.devices()
    die = {"at": "Ledger.close_round", "when": "before"}
    assert fleet.aggregator(die=die).end() == KILLED
    for device in devices.values():
        device.kill()
    assert fleet.aggregator().end() == 0  # long before the deadline
    assert fleet.ledger.models() == [record.model for record in fleet.undisturbed.rounds]
    assert fleet.gap() == 0


def test_the_newest_model_is_evaluated_after_a_restart(make_fleet: MakeFleet) -> None:
    """Killed when the last round was closed and nothing else: model file and loss still come."""
    fleet = make_fleet("a b", rounds=1)
    devices = fleet.devices()
    test = str(fleet.folder / "a.npz")
    die = {"at": "Ledger.close_round", "when": "after"}
    assert fleet.aggregator(die=die, test=test).end() == KILLED
    assert not (fleet.ledger.folder / "model.onnx").exists()
    restarted = fleet.aggregator(test=test)
    assert restarted.end() == 0
    assert [device.end() for device in devices.values()] == [0, 0]
    model = fleet.undisturbed.model
    exported = (fleet.ledger.folder / "model.onnx").read_bytes()
    assert exported == export_model(fleet.plan, model)
    metrics = fleet.plan.evaluator().evaluate(model, *fleet.clients["a"])
    evaluated = {"round": 1, "loss": metrics.loss, "accuracy": metrics.accuracy}
    assert restarted.reports("evaluated") == [{"kind": "evaluated", **evaluated}]
    again = fleet.aggregator(test=test)
    assert again.end() == 0
    assert again.reports("evaluated") == []
