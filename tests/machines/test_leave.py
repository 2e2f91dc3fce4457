"""A device takes leave: C -= c_i and N -= 1, in one step, and only once."""

from __future__ import annotations

import numpy as np
from machines.inline import broker, client, settle, tell
from support.toy_plans import quadratic

from kellet.sdk.algorithms import Scaffold
from kellet.sdk.device import Leave
from kellet.server.simulate import Cohort, Simulation
from kellet.server.sums import control_gap


def simulation(cohort: Cohort = None) -> Simulation:
    clients = {
        name: (np.array([row], np.float32), np.zeros(1, np.int64))
        for name, row in {"a": (1.0, 0.0), "b": (2.0, 3.0), "c": (1.0, 5.0)}.items()
    }
    return Simulation(
        quadratic(initial=1.0),
        clients,
        Scaffold(local_lr=0.1, local_steps=2),
        rounds=2,
        cohort=cohort,
        seed=0,
        test=None,
        initial=None,
        check="event",
        keep_models=False,
        on_round=None,
    )


def test_leaving_takes_the_control_out_of_the_sum_and_the_member_out_of_n() -> None:
    sim = simulation()
    sim.run()
    rest = [client(sim, name).control() for name in ("b", "c")]
    assert client(sim, "a").control()[0] != 0
    assert control_gap(sim.server.control, rest) > 0

    tell(sim, "a", Leave())
    settle(sim)

    assert client(sim, "a").machine.left
    assert sim.server.members == 2
    assert control_gap(sim.server.control, rest) == 0
    assert client(sim, "a").control()[0] == 0
    assert [u.kind for u in sim.ledger.spooled()] == ["leave"]


def test_a_lost_receipt_does_not_make_a_second_leave() -> None:
    sim = simulation()
    sim.run()
    rest = [client(sim, name).control() for name in ("b", "c")]
    device = client(sim, "a")
    tell(sim, "a", Leave())
    while not sim.ledger.spooled():  # up to the moment of counting
        assert sim._exchange.pump()
    broker(sim).drop_link("a")  # the receipt is on its way, and lost
    settle(sim)
    assert not device.machine.left

    broker(sim).restore_link("a")
    settle(sim)
    assert device.machine.left
    assert sim.server.members == 2
    assert control_gap(sim.server.control, rest) == 0
    assert len(sim.ledger.spooled()) == 1


def test_a_device_that_was_never_counted_leaves_without_a_control() -> None:
    sim = simulation(cohort=lambda _round, _ids: ["b", "c"])
    sim.run()
    before = sim.server.control.integers()
    tell(sim, "a", Leave())
    settle(sim)
    assert client(sim, "a").machine.left
    assert sim.server.members == 2
    assert sim.server.control.integers() == before
