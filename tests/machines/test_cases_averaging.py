"""Faults that users met in other systems, by number: FedProx and averaging (11 to 16), seeds (31).

The other numbers belong to brokers, processes, installs and, 32, to ``tests/protocol``.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from algorithms.local import rows, run, skewed
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, softmax_regression

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.trainer import Data, train
from kellet.server import History, State, simulate


def test_case_11_the_term_pulls_from_the_second_step_on() -> None:
    """Step 2 starts at 9.1: (2/2)*.81 = .81, of which the two steps' mean reports half."""
    algorithm = FedProx(mu=2, local_lr=0.1, batch_size=0, local_steps=2)
    outcome = run(linear_loss(1), algorithm, [10.0], rows([9.0]))
    assert outcome.objective - outcome.loss == pytest.approx(0.405, abs=1e-5)
    assert outcome.delta_y[0] == pytest.approx(-1.62, abs=1e-5)


def test_case_11_the_snapshot_is_constant_through_the_round() -> None:
    plan = softmax_regression(4, 3)
    session = plan.session()
    x = np.linspace(-1, 1, 15).astype(np.float32)
    snapshot = hashlib.sha256(x).digest()
    seen = []

    def look(_step: int, _of: int) -> None:
        seen.append((hashlib.sha256(x).digest(), hashlib.sha256(session.params).digest()))

    train(
        session,
        FedProx(mu=1, local_lr=0.1, batch_size=4, local_steps=6),
        Data(*plan.check_data(*skewed({"a": 20})["a"])),
        x=x,
        shapes=Shapes.of(plan.manifest.tensors),
        seed=0,
        device="a",
        round_=1,
        progress=look,
    )
    assert [model for model, _ in seen] == [snapshot] * 6
    assert len({params for _, params in seen}) == 6  # while the model moves at every step
    assert not np.shares_memory(x, session.params)


def test_case_12_the_step_follows_the_gradient_of_the_squared_norm() -> None:
    """The second step against finite differences of the term, entry by entry."""
    mu, lr = 0.5, 0.25
    x, g = np.array([10, -4, 2], np.float32), np.array([9, -2, 1], np.float32)
    algorithm = FedProx(mu=mu, local_lr=lr, batch_size=0, local_steps=2)
    outcome = run(linear_loss(3), algorithm, x, rows(g))
    first = x - lr * g
    second = x + outcome.delta_y
    pull = (first - second) / lr - g

    def penalty(index: int, by: float) -> float:
        y = first.copy()
        y[index] += by
        return algorithm.penalty(kernels.distance(y, x))

    h = 0.125
    differences = [(penalty(i, h) - penalty(i, -h)) / (2 * h) for i in range(3)]
    assert pull.tolist() == pytest.approx(differences, abs=1e-5)
    assert pull.tolist() == pytest.approx((mu * (first - x)).tolist(), abs=1e-5)
    # The norm itself, not squared, would pull with mu whatever the distance.
    assert np.linalg.norm(pull) == pytest.approx(mu * np.linalg.norm(first - x), abs=1e-5)


@pytest.mark.parametrize("implicit", [False, True])
def test_case_13_mu_zero_is_fedavg_to_the_bit(implicit: bool) -> None:
    plan, clients = softmax_regression(4, 3), skewed({"a": 20, "b": 33, "c": 5})
    both: dict[str, Any] = {"local_lr": 0.1, "batch_size": 8, "local_epochs": 2}
    plain = simulate(plan, clients, FedAvg(**both), rounds=3, cohort=2)
    leash = simulate(plan, clients, FedProx(mu=0, implicit=implicit, **both), rounds=3, cohort=2)
    assert leash.digest == plain.digest
    assert [r.objective for r in leash.rounds] == [r.train_loss for r in plain.rounds]
    held = simulate(plan, clients, FedProx(mu=0.1, **both), rounds=3, cohort=2)
    assert held.digest != plain.digest


def test_case_14_both_the_loss_and_the_objective_are_reported() -> None:
    """g = 9 from x = 10, mu = 2: losses 90 and 81.9; the term adds 0 and .81."""
    both: dict[str, Any] = {"local_lr": 0.1, "batch_size": 0, "local_steps": 2}

    def first_round(algorithm: FedAvg) -> Any:
        start = State(x=[10.0])
        history = simulate(linear_loss(1), {"a": rows([9.0])}, algorithm, rounds=1, initial=start)
        return history.rounds[0]

    leash, free = first_round(FedProx(mu=2, **both)), first_round(FedAvg(**both))
    assert leash.train_loss == pytest.approx(85.95, abs=1e-4)
    assert leash.objective == pytest.approx(85.95 + 0.405, abs=1e-4)
    assert free.train_loss == free.objective == pytest.approx(85.95, abs=1e-4)


def test_case_15_no_samples_are_refused_and_the_model_stays() -> None:
    lab = Lab(linear_loss(2, initial=[1, 2]), FedAvg(), target=2, quorum=1, deadline=60)
    before = lab.machine.digest
    for name in ("a", "b"):
        receipt = Puppet(lab, name).send([5, 5], samples=0)
        assert (receipt.counted, receipt.reason) == (False, "no_samples")
    lab.wait(61)
    assert lab.machine.digest == before
    assert lab.machine.model.tolist() == [1, 2]
    assert [row.state for row in lab.ledger.rounds()] == ["abandoned", "open"]


@pytest.mark.parametrize("algorithm", [FedAvg(), FedProx(), Scaffold(), Scaffold(delta_c="f32")])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_case_16_one_poisoned_update_is_refused_by_name(algorithm: FedAvg, bad: float) -> None:
    lab = Lab(linear_loss(2), algorithm, target=2, quorum=1, deadline=60)
    explicit = isinstance(algorithm, Scaffold) and algorithm.delta_c == "f32"
    healthy, poisoned = Puppet(lab, "healthy"), Puppet(lab, "poisoned")
    change = {"delta_c": [-1.0, -2.0]} if explicit else {}
    assert healthy.send([0.5, 1], **change).counted

    receipt = poisoned.send([0.5, bad], **change)
    assert (receipt.counted, receipt.reason) == (False, "not_finite")
    if explicit:
        receipt = poisoned.send([0.5, 1], delta_c=[-1.0, bad])
        assert (receipt.counted, receipt.reason) == (False, "not_finite")
    refused = lab.reports("refused_update")
    assert {(r["device"], r["reason"]) for r in refused} == {("poisoned", "not_finite")}

    lab.wait(61)  # the round closes with the rest
    assert lab.machine.model.tolist() == [0.5, 1]
    if algorithm.controls:
        assert lab.machine.control.integers() == [-(2**48), -(2**49)]


def test_case_16_values_beyond_the_grid_are_refused_too() -> None:
    """Each would end in an overflow somewhere; none may stop the aggregator."""
    lab = Lab(linear_loss(1), Scaffold(), target=5)
    for index, (delta_y, rate_sum) in enumerate(
        [(2.0**14, 1e6), (-(2.0**14), 1e6), (1e30, 1.0), (1e4, 1e-3), (1.0, 5e-324)]
    ):
        receipt = Puppet(lab, f"wild-{index}").send([delta_y], rate_sum=rate_sum)
        assert (receipt.counted, receipt.reason) == (False, "range")
    assert Puppet(lab, "tame").send([16383.0], rate_sum=2.0).counted
    assert lab.machine.control.integers() == [-16383 * 2**47]


@pytest.mark.parametrize("field", ["loss", "objective", "drift", "rate_sum"])
def test_case_16_numbers_beside_the_vectors_must_be_finite(field: str) -> None:
    for bad in (np.nan, np.inf):
        receipt = Puppet(Lab(linear_loss(1), Scaffold())).send([1.0], **{field: bad})
        assert (receipt.counted, receipt.reason) == (False, "header")


def test_case_31_the_seed_decides() -> None:
    plan, clients = softmax_regression(4, 3), skewed({"a": 40, "b": 33, "c": 27})

    def run_with(seed: int, **how: Any) -> History:
        algorithm = Scaffold(local_lr=0.1, batch_size=8, local_epochs=1)
        return simulate(plan, how.get("clients", clients), algorithm, rounds=3, cohort=2, seed=seed)

    first = run_with(7)
    assert run_with(7).digest == first.digest
    assert [r.counted for r in run_with(7).rounds] == [r.counted for r in first.rounds]
    assert len({run_with(seed).digest for seed in range(7, 12)}) == 5
    # Exact sums do not ask who came first.
    turned = run_with(7, clients=dict(reversed(clients.items())))
    assert turned.digest == first.digest
    assert all(np.array_equal(turned.c_i[name], first.c_i[name]) for name in clients)
