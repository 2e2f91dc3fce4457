"""The pair (delta_y, delta_c), explicit and derived: the same sums, half the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic, softmax_regression

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import UsageError
from kellet.server import simulate

ONE = 2**48


def clients(d: int = 6, c: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(11)
    centres = rng.standard_normal((c, d)) * 2
    made = {}
    for index, (name, n) in enumerate({"a": 30, "b": 47, "c": 12, "d": 64}.items()):
        y = np.where(rng.random(n) < 0.8, index % c, rng.integers(0, c, n))
        made[name] = (centres[y] + rng.standard_normal((n, d)), y)
    return made


@pytest.mark.parametrize("schedule", [{}, {"lr_decay": 0.9}])
def test_explicit_and_derived_walk_together(schedule: dict[str, float]) -> None:
    plan, data = softmax_regression(6, 3), clients()
    both: dict[str, Any] = {"local_lr": 0.2, "batch_size": 16, "local_epochs": 2} | schedule
    derived, explicit = (
        simulate(
            plan,
            data,
            Scaffold(delta_c=delta_c, **both),  # type: ignore[arg-type]
            rounds=8,
            cohort=3,
            keep_models=True,
            check="event",
        )
        for delta_c in ("derived", "f32")
    )
    assert derived.control_gap == explicit.control_gap == 0
    # Nothing was sent yet when round 1 began: the models agree to the bit. Then a rounding of
    # delta_c to float32 (2^-24 of it) goes into each step.
    assert derived.models[0].tobytes() == explicit.models[0].tobytes()
    assert derived.digest != explicit.digest
    assert np.abs(np.subtract(derived.models, explicit.models)).max() < 1e-6
    for name, c_i in derived.c_i.items():
        assert np.abs(c_i - explicit.c_i[name]).max() < 1e-6


def test_explicit_c_i_is_what_was_sent_not_what_was_computed() -> None:
    """c_i follows the decoded float32, so that C and the c_i stay equal as integers."""
    history = simulate(
        quadratic(initial=1.0),
        {"a": (np.array([[1, 0.3]]), np.zeros(1, np.int64))},
        Scaffold(local_lr=0.1, batch_size=0, local_steps=3, delta_c="f32"),
        rounds=1,
        check="event",
    )
    c_i = history.c_i["a"][0]
    assert c_i == np.float32(c_i)  # from zero, one float32 step
    assert history.control_gap == 0


@pytest.mark.parametrize("batch_size", [0, 7, 16])
def test_option_one_end_to_end(batch_size: int) -> None:
    """c_i is the mean gradient at x, whatever the local steps do; the gap is 0."""
    plan, data = softmax_regression(6, 3), clients()
    history = simulate(
        plan,
        data,
        Scaffold(option="I", local_lr=0.2, batch_size=batch_size, local_epochs=1),
        rounds=1,
        check="event",
    )
    session = plan.session()
    for name, (x, y) in data.items():
        session.step(*plan.check_data(x, y))  # at the initial model
        assert history.c_i[name] == pytest.approx(session.grads.astype(float), abs=2e-6)
    later = simulate(
        plan,
        data,
        Scaffold(option="I", local_lr=0.2, batch_size=batch_size, local_epochs=1),
        rounds=5,
        cohort=2,
        check="event",
    )
    assert later.control_gap == 0
    assert later.updates_counted == 10


def test_option_one_cannot_be_derived() -> None:
    with pytest.raises(UsageError, match="full local gradient"):
        Scaffold(option="I", delta_c="derived")
    assert Scaffold(option="I").delta_c == "f32"
    assert Scaffold().delta_c == "derived"


def test_the_default_uplink_is_fedavgs() -> None:
    """5,000 parameters: derived delta_c costs no bytes, explicit ones as many as delta_y."""
    plan = linear_loss(5000)
    rng = np.random.default_rng(0)
    data = {
        name: (rng.standard_normal((3, 5000)), np.zeros(3, np.int64)) for name in ("a", "b", "c")
    }
    both: dict[str, Any] = {"local_lr": 0.1, "batch_size": 0, "local_steps": 2}

    def uplink(algorithm: FedAvg) -> int:
        return simulate(plan, data, algorithm, rounds=3).rounds[-1].uplink_bytes

    fedavg, derived = uplink(FedAvg(**both)), uplink(Scaffold(**both))
    explicit = uplink(Scaffold(delta_c="f32", **both))
    assert abs(derived / fedavg - 1) < 0.01
    assert explicit / fedavg == pytest.approx(2, rel=0.05)
    assert fedavg > 9 * 4 * 5000


def test_an_explicit_delta_c_that_contradicts_delta_y_names_the_device() -> None:
    lab = Lab(linear_loss(2), Scaffold(delta_c="f32"), target=4)
    honest, off = Puppet(lab, "honest"), Puppet(lab, "off")
    # A = .5 and c_a = 0: delta_c = -2 * delta_y.
    third = np.float32(-2 / 3)
    assert honest.send([1 / 3, -0.25], delta_c=[third, 0.5]).counted
    for delta_c in ([-1, 0.5], [third, -0.5], [third, 0.5 * (1 + 2**-21)], [0, 0]):
        receipt = off.send([1 / 3, -0.25], delta_c=delta_c)
        assert (receipt.counted, receipt.reason) == (False, "inconsistent")
    # One float32 away is the rounding of another machine.
    near = np.nextafter(third, np.float32(0))
    assert off.send([1 / 3, -0.25], delta_c=[near, 0.5]).counted
    assert {r["device"] for r in lab.reports("refused_update")} == {"off"}
    total = int(kernels.to_grid(np.array([third, near])).sum())
    assert lab.machine.control.integers() == [total, ONE]


def test_derived_is_from_the_announced_control_not_from_the_current_one() -> None:
    """The second update of a round finds another C than the first: c_a is the same for both.

    With the server's current c in place of c_a the second delta_c would be -2.5 - 1, not -2 - 1,
    and accuracy would not show it.
    """
    lab = Lab(linear_loss(1), Scaffold(), target=2)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.send([-1.5])  # c_a = 0, A = .5: +3
    b.send([-0.5])  # +1: C = 4
    assert lab.machine.control.integers() == [4 * ONE]
    assert lab.round.control is not None
    assert lab.blobs.get(lab.round.control.sha256) == np.float32(2).tobytes()

    a.send([-1.5])  # -2 + 3 = 1: C = 5, and the current c is 2.5
    assert lab.machine.control.integers() == [5 * ONE]
    b.send([0.5])  # -2 - 1 = -3
    assert lab.machine.control.integers() == [2 * ONE]


def test_derived_is_from_the_announced_control_after_a_restart(tmp_path: Any) -> None:
    lab = Lab(linear_loss(1), Scaffold(), target=2, state=tmp_path)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    a.send([-1.5])
    b.send([-0.5])
    a.send([-1.5])
    lab.start()  # the bodies of the open round are added again, from the announced control
    assert lab.machine.control.integers() == [5 * ONE]
    b.hello(seq=1, epoch=1, audit=kernels.linear_digest(np.array([ONE]), 1))
    b.send([0.5])
    assert lab.machine.control.integers() == [2 * ONE]


def test_the_announced_control_is_float32_and_both_sides_use_it() -> None:
    """C/N = 1/3 is no float32: delta_c is from the rounded one, to the grid step."""
    lab = Lab(linear_loss(1), Scaffold(), target=1, min_members=3)
    a, b, _c = (Puppet(lab, name) for name in "abc")
    a.send([-0.5])  # C = 1
    assert lab.machine.control.integers() == [ONE]
    b.send([0.25])
    announced = float(np.float32(1 / 3))
    delta_c = round((-announced - 0.25 / 0.5) * ONE)
    assert lab.machine.control.integers() == [ONE + delta_c]
