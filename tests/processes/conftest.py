"""Brokers and fleets of real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fleet import Clients, Fleet, MakeFleet
from support.toy_plans import softmax_regression

from kellet.sdk import Plan
from kellet.server.brokers import BrokerHandle, open_broker

SCAFFOLD = {"name": "scaffold", "local_lr": 0.1, "local_steps": 5, "batch_size": 8}
FEATURES, CLASSES = 6, 3


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerHandle]:
    """A broker of the test's own: embedded, unless the test's parameter says otherwise."""
    with open_broker(getattr(request, "param", "embedded"), state_dir=tmp_path) as opened:
        yield opened


@pytest.fixture(scope="session")
def plan() -> Plan:
    """Softmax regression with 21 parameters."""
    return softmax_regression(FEATURES, CLASSES)


@pytest.fixture(scope="session")
def wide_plan() -> Plan:
    """Softmax regression with 3,003 parameters: an update is twelve parts of 1 KB."""
    return softmax_regression(1000, CLASSES)


@pytest.fixture
def make_fleet(tmp_path: Path, plan: Plan, broker: BrokerHandle) -> Iterator[MakeFleet]:
    """``make_fleet(names, rounds=..., **config)``: SCAFFOLD on each device's own samples."""
    with ExitStack() as stack:

        def make(names: str | Clients, **options: Any) -> Fleet:
            given = {"plan": plan, "broker": broker, "algorithm": SCAFFOLD, **options}
            if isinstance(names, str):
                clients = samples(names, *given["plan"].manifest.input.shape)
            else:
                clients = names
            return stack.enter_context(Fleet(tmp_path, clients=clients, **given))

        yield make


def samples(names: str, features: int = FEATURES) -> Clients:
    """Each device's own 20 samples, with a class that the others see less of."""
    clients = {}
    for number, name in enumerate(names.split()):
        numbers = np.random.default_rng(number)
        x = numbers.standard_normal((20, features)).astype(np.float32)
        y = np.where(numbers.random(20) < 0.7, number % CLASSES, x.argmax(1) % CLASSES)
        clients[name] = (x, y.astype(np.int64))
    return clients
