"""A device that is killed at any moment resumes, and each of its updates counts once."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.fault_proxy import FaultProxy
from support.fleet import KILLED, Fleet, MakeFleet
from support.processes import wait_until

from kellet.sdk import Plan
from kellet.sdk.transport.url import parse_url

STEPS = 800
PART = 1024
LONG = {"name": "scaffold", "local_lr": 0.01, "local_steps": STEPS, "batch_size": 8}

# What each device dies of, once each, in an order of its own. A class and method: that call.
DEATHS: list[str | dict[str, Any]] = [
    "in training",
    {"at": "Store.save_pending", "when": "before"},
    {"at": "Store.save_pending", "when": "inside"},
    {"at": "Store.save_pending", "when": "after"},
    "in upload",
    {"at": "Store.settle", "when": "before"},  # counted, and the receipt has come
    {"at": "Store.settle", "when": "inside"},
    {"at": "Store.settle", "when": "after"},
    "some time",
    "some time",
]


def test_killed_at_thirty_moments(make_fleet: MakeFleet, wide_plan: Plan) -> None:
    fleet = make_fleet("a b c", plan=wide_plan, algorithm=LONG, rounds=10, part_size=PART)
    aggregator = fleet.aggregator()
    with ThreadPoolExecutor(3) as pool:
        killed = sum(pool.map(lambda name: _live_and_die(fleet, name), fleet.clients))
    assert killed == 30
    assert aggregator.end() == 0
    assert aggregator.reports("restored") == []  # no control was ever found to be off
    fleet.check_undisturbed()


def _live_and_die(fleet: Fleet, name: str) -> int:
    """Die of each cause, then live to the end. How often it was killed."""
    chance = random.Random(f"deaths of {name}")
    deaths = chance.sample(DEATHS, len(DEATHS))
    try:
        for death in deaths:
            _die(fleet, name, death, chance)
            fleet.check_control(name)
        assert fleet.device(name).end() == 0
    except BaseException:
        fleet.close()  # or the others would wait for this one
        raise
    return len(deaths)


def _die(fleet: Fleet, name: str, death: str | dict[str, Any], chance: random.Random) -> None:
    match death:
        case "in upload":
            _die_in_upload(fleet, name)
        case "some time":
            device = fleet.device(name)
            device.wait_for("welcome")
            time.sleep(chance.uniform(0, 0.3))
            device.kill()
        case "in training":
            step = chance.randint(1, STEPS)
            die = {"at": "GradientSession.step", "when": "before", "count": step}
            assert fleet.device(name, die=die).end() == KILLED
        case _:
            assert fleet.device(name, die=death).end() == KILLED


def _die_in_upload(fleet: Fleet, name: str) -> None:
    """Some parts have arrived and others have not."""
    with FaultProxy(parse_url(fleet.broker.url).port) as proxy:
        device = fleet.device(name, broker=proxy.url)
        proxy.rate_up = 10_000.0
        device.wait_for("trained")
        uid = fleet.disk(name).pending()
        assert uid is not None
        wait_until(lambda: fleet.ledger.arrived(uid, PART)[0] > 0)
        device.kill()
        here, parts = fleet.ledger.arrived(uid, PART)
        assert 0 < here < parts
