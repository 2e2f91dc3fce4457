"""A large update over a slow link that is cut: what has arrived is not sent again."""

from __future__ import annotations

import numpy as np
import pytest
from support.fault_proxy import FaultProxy
from support.fleet import MakeFleet, needs_mosquitto
from support.processes import wait_until
from support.toy_plans import linear_loss

from kellet.sdk.transport.url import parse_url

ONE_STEP = {"name": "scaffold", "local_lr": 0.1, "local_steps": 1, "batch_size": 0}


@pytest.mark.parametrize(
    ("broker", "parameters", "rate"),
    [
        ("embedded", 250_000, 250_000),
        pytest.param("embedded", 250_000, 20_000, marks=pytest.mark.slow),
        pytest.param("embedded", 800_000, 150_000, marks=pytest.mark.slow),
        # One connection for all.
        pytest.param("mosquitto", 800_000, 150_000, marks=[pytest.mark.slow, needs_mosquitto]),
    ],
    indirect=["broker"],
)
def test_cut_half_way(make_fleet: MakeFleet, parameters: int, rate: float) -> None:
    x = np.random.default_rng(3).standard_normal((2, parameters)).astype(np.float32)
    clients = {"a": (x, np.zeros(2, np.int64))}
    plan = linear_loss(parameters)
    fleet = make_fleet(clients, plan=plan, algorithm=ONE_STEP, rounds=1)
    with FaultProxy(parse_url(fleet.broker.url).port) as proxy:
        aggregator = fleet.aggregator()
        device = fleet.device("a", broker=proxy.url)
        device.wait_for("fetched")
        proxy.rate_up = rate
        before = proxy.bytes_up
        wait_until(lambda: proxy.bytes_up - before > 2 * parameters)
        proxy.cut()
        body = 4 * parameters
        settled = device.wait_for("settled", timeout=20 + 4 * body / rate)
        assert proxy.bytes_up - before < 1.2 * body
        # Of what was handed to the link, one window at most was lost with it.
        assert settled["bytes"] < 1.01 * (body + 8 * fleet.broker.part_size)
        assert device.end() == 0
    assert aggregator.end() == 0
    fleet.check_undisturbed()
