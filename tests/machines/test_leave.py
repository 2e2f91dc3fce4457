"""A device takes leave: C -= c_i and N -= 1, in one step, and only once."""

from __future__ import annotations

import numpy as np
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


def settle(sim: Simulation) -> None:
    for _ in range(100):
        while sim.broker.pump():
            pass
        if not sim._pass_time():
            return


def test_leaving_takes_the_control_out_of_the_sum_and_the_member_out_of_n() -> None:
    sim = simulation()
    sim.run()
    rest = [sim.devices[name].committed() for name in ("b", "c")]
    assert sim.devices["a"].committed()[0] != 0
    assert control_gap(sim.server.control, rest) > 0

    sim.devices["a"].take(Leave())
    settle(sim)

    assert sim.devices["a"].machine.left
    assert sim.server.members == 2
    assert control_gap(sim.server.control, rest) == 0
    assert sim.devices["a"].committed()[0] == 0
    assert [u.kind for u in sim.ledger.spooled()] == ["leave"]


def test_a_lost_receipt_does_not_make_a_second_leave() -> None:
    sim = simulation()
    sim.run()
    rest = [sim.devices[name].committed() for name in ("b", "c")]
    device = sim.devices["a"]
    device.take(Leave())
    while not sim.ledger.spooled():  # up to the moment of counting
        assert sim.broker.pump(1)
    sim.broker.drop_link("a")  # the receipt is on its way, and lost
    settle(sim)
    assert not device.machine.left

    sim.broker.restore_link("a")
    settle(sim)
    assert device.machine.left
    assert sim.server.members == 2
    assert control_gap(sim.server.control, rest) == 0
    assert len(sim.ledger.spooled()) == 1


def test_a_device_that_was_never_counted_leaves_without_a_control() -> None:
    sim = simulation(cohort=lambda _round, _ids: ["b", "c"])
    sim.run()
    before = sim.server.control.integers()
    sim.devices["a"].take(Leave())
    settle(sim)
    assert sim.devices["a"].machine.left
    assert sim.server.members == 2
    assert sim.server.control.integers() == before
