"""Faults that users met in other systems, by number: SCAFFOLD (1 to 10).

Each is worked through the product: a device's training, the machines, the simulation.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from algorithms.local import control, rows, run, skewed
from machines.buffered import buffered
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic, softmax_regression

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import KelletError, PlanError, StorageError
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.store import Pending, Store
from kellet.sdk.trainer import Data, train
from kellet.server import State, simulate

GRID = 2.0**-48


def test_case_01_the_change_of_c_i_travels_not_c_i() -> None:
    """Round 2 of the trace: c_i goes from .95 to 1.3155, and .3655 is sent."""
    for delta_c in ("f32", "derived"):
        algorithm = Scaffold(local_lr=0.1, batch_size=0, local_steps=2, delta_c=delta_c)  # type: ignore[arg-type]
        sent = run(quadratic(), algorithm, [1.265], rows([1, 0]), c=[-1.325], c_i=[0.95])
        assert sent.delta_c is not None
        assert kernels.from_grid(sent.delta_c[:])[0] == pytest.approx(0.3655, abs=1e-6)
        if delta_c == "f32":
            assert sent.delta_c_sent is not None
            assert np.frombuffer(sent.delta_c_sent, "<f4")[0] == pytest.approx(0.3655, abs=1e-6)


def test_case_01_an_update_that_carries_c_i_itself_is_refused() -> None:
    """c_a = 0, delta_y = -.25 over A = .5: delta_c is .5, and a c_i of 2 came instead."""
    lab = Lab(linear_loss(1), Scaffold(delta_c="f32"))
    wrong, right = Puppet(lab, "wrong"), Puppet(lab, "right")
    receipt = wrong.send([-0.25], delta_c=[2.0])
    assert (receipt.counted, receipt.reason) == (False, "inconsistent")
    assert right.send([-0.25], delta_c=[0.5]).counted
    assert lab.machine.control.integers() == [2**47]
    assert [r["device"] for r in lab.reports("refused_update")] == ["wrong"]


@pytest.mark.parametrize(("members", "c"), [(1, 0.95), (2, 0.475), (4, 0.2375), (5, 0.19)])
def test_case_02_c_is_divided_by_the_fleet_not_by_the_cohort(members: int, c: float) -> None:
    names = [f"client-{i}" for i in range(members)]
    history = simulate(
        quadratic(initial=1.0),
        {name: rows([1, 0]) for name in names},
        Scaffold(local_lr=0.1, batch_size=0, local_steps=2),
        rounds=1,
        cohort=lambda _round, _members: names[:1],
    )
    assert history.c_i[names[0]][0] == pytest.approx(0.95, abs=1e-6)
    assert history.c[0] == pytest.approx(c, abs=1e-6)


def test_case_03_the_first_round_has_no_correction() -> None:
    """Controls begin at zero, whatever the weights are: the steps are FedAvg's, to the bit."""
    plan = softmax_regression(4, 3, initial=np.linspace(-1, 1, 15))
    clients = skewed({"a": 20, "b": 33})
    both: dict[str, Any] = {"local_lr": 0.1, "batch_size": 8, "local_epochs": 2}
    plain = simulate(plan, clients, FedAvg(weighting="uniform", **both), rounds=1)
    corrected = simulate(plan, clients, Scaffold(**both), rounds=1)
    assert corrected.digest == plain.digest
    later = simulate(plan, clients, Scaffold(**both), rounds=2)
    assert later.digest != simulate(plan, clients, FedAvg(**both), rounds=2).digest


def test_case_03_a_newcomer_changes_n_and_nothing_else() -> None:
    lab = Lab(linear_loss(1), Scaffold(), target=1)
    first = Puppet(lab, "first")
    assert lab.round.members == 1
    assert first.send([-0.5]).counted  # A = .5: delta_c = 1
    model, total = lab.machine.digest, lab.machine.control.integers()
    assert total == [2**48]
    announced = lab.announcement

    newcomer = Puppet(lab, "newcomer")
    assert lab.announcement == announced  # the round that is open stays as it was announced
    assert (lab.machine.digest, lab.machine.control.integers()) == (model, total)
    assert lab.machine.members == 2
    assert lab.round.control is not None
    assert lab.blobs.get(lab.round.control.sha256) == np.float32(1).tobytes()

    first.send([0.0])  # c_a = 1: delta_c = -1 - 0, so C = 0; N = 2 from this announcement on
    assert lab.round.members == 2
    assert lab.machine.control.integers() == [0]
    newcomer.send([-0.5])  # c_a = 0: delta_c = 1
    assert lab.round.control is not None
    assert lab.blobs.get(lab.round.control.sha256) == np.float32(0.5).tobytes()


def test_case_04_ten_samples_against_ten_thousand_stay_finite() -> None:
    history = simulate(
        softmax_regression(4, 3),
        skewed({"small": 10, "large": 10_000}),
        Scaffold(local_lr=0.1, batch_size=32, local_epochs=1),
        rounds=4,
        test=skewed({"test": 300}, seed=0)["test"],
        check="event",
    )
    losses = [(r.train_loss, r.objective, r.loss) for r in history.rounds]
    assert np.isfinite(np.array(losses, float)).all()
    assert [r.steps for r in history.rounds] == [1 + 313] * 4
    assert history.control_gap == 0


@pytest.mark.parametrize(
    ("samples", "batch_size", "epochs", "steps"),
    [(70, 32, 2, 6), (96, 32, 2, 6), (100, 32, 1, 4), (10, 32, 3, 3), (7, 0, 5, 5), (1, 1, 1, 1)],
)
def test_case_05_k_counts_steps(samples: int, batch_size: int, epochs: int, steps: int) -> None:
    """2 epochs of 3 batches are 6 steps, 100 samples in batches of 32 are 4: A = K*lr."""
    algorithm = Scaffold(local_lr=0.25, batch_size=batch_size, local_epochs=epochs)
    outcome = run(linear_loss(1), algorithm, [0.0], rows(*[[1.0]] * samples))
    assert outcome.steps == steps
    assert outcome.rate_sum == steps * 0.25
    assert outcome.samples == samples
    assert outcome.delta_y.tolist() == [-0.25 * steps]
    assert outcome.delta_c is not None
    assert outcome.delta_c[:].tolist() == [2**48]  # the gradient, 1, whatever K


def test_case_05_the_steps_actually_run_are_the_ones_that_count() -> None:
    """A device that is stopped after 3 of 40 steps divides by 3."""
    answers = iter(["", "", "too hot"])
    outcome = run(
        linear_loss(1),
        Scaffold(local_lr=0.25, batch_size=0, local_steps=40),
        [0.0],
        rows([1.0]),
        stop=lambda: next(answers),
    )
    assert (outcome.steps, outcome.rate_sum) == (3, 0.75)
    assert outcome.delta_c is not None
    assert outcome.delta_c[:].tolist() == [2**48]


def test_case_06_the_normaliser_is_the_sum_of_the_rates() -> None:
    """Rates .5, .25, .125: A = .875, and the last one would give 7/3 of it."""
    algorithm = Scaffold(local_lr=0.5, lr_decay=0.5, batch_size=0, local_steps=3)
    c, c_i, g = 0.75, 0.25, 3.0
    outcome = run(linear_loss(1), algorithm, [0.0], rows([g]), c=[c], c_i=[c_i])
    assert outcome.rate_sum == 0.875
    assert outcome.delta_y.tolist() == [-0.875 * (g - c_i + c)]
    assert outcome.delta_c is not None
    delta_c = kernels.from_grid(outcome.delta_c[:])[0]
    assert delta_c + c + float(outcome.delta_y[0]) / 0.875 == 0
    assert delta_c == g - c_i


def test_case_06_rates_that_no_fraction_describes() -> None:
    """A is summed in float64 over the float32 rates, in the order of the steps."""
    algorithm = Scaffold(local_lr=0.1, lr_decay=0.93, batch_size=0, local_steps=7)
    outcome = run(linear_loss(2), algorithm, [0.5, 2], rows([3, -1]), c=[0.3, 7], c_i=[1, -0.2])
    rates = [
        np.float32(np.float64(np.float32(0.1)) * np.float64(np.float32(0.93)) ** k)
        for k in range(7)
    ]
    total = 0.0
    for rate in rates:
        total += float(rate)
    assert outcome.rate_sum == total
    assert outcome.delta_c is not None
    c = np.array([0.3, 7], np.float32).astype(np.float64)
    left = kernels.from_grid(outcome.delta_c[:]) + c + outcome.delta_y.astype(np.float64) / total
    assert np.abs(left).max() <= GRID


def test_case_06_whole_rounds_under_a_schedule() -> None:
    history = simulate(
        softmax_regression(4, 3),
        skewed({"a": 20, "b": 33, "c": 5}),
        Scaffold(local_lr=0.2, lr_decay=0.9, batch_size=8, local_epochs=2),
        rounds=4,
        cohort=2,
        check="event",
    )
    assert history.control_gap == 0


def test_case_07_delta_c_is_not_lost_through_shared_memory() -> None:
    plan = quadratic(initial=1.0)
    session, c, c_i = plan.session(), np.zeros(1, np.float32), control([0.0])
    x = np.ones(1, np.float32)
    for steps in (1, 2):
        outcome = train(
            session,
            Scaffold(local_lr=0.1, batch_size=0, local_steps=steps),
            Data(*plan.check_data(*rows([1, 0]))),
            x=x,
            shapes=Shapes.of(plan.manifest.tensors),
            c=c,
            c_i=c_i,
            seed=0,
            device="a",
            round_=1,
        )
        assert outcome.delta_c is not None
        assert outcome.delta_c[:][0] != 0
        assert not np.shares_memory(outcome.delta_c[:], c_i)
        assert not np.shares_memory(outcome.delta_y, session.params)
        # What was handed in is as it was.
        assert (x.tolist(), c.tolist(), c_i.tolist()) == ([1.0], [0.0], [0])


def test_case_07_the_control_moves_from_round_to_round() -> None:
    seen = {
        rounds: simulate(
            quadratic(initial=1.0),
            {"a": rows([1, 0]), "b": rows([2, 3])},
            Scaffold(local_lr=0.1, batch_size=0, local_steps=2),
            rounds=rounds,
        ).c_i["a"][0]
        for rounds in (1, 2, 3)
    }
    assert [round(c_i, 6) for c_i in seen.values()] == [0.95, 1.3155, 1.511725]


def test_case_08_opposite_optima_meet_in_the_middle() -> None:
    """Minima at -5 (curvature 1) and 5 (curvature 4): the middle is (-5 + 20)/5 = 3."""
    clients = {"left": rows([1, -5]), "right": rows([4, 5])}
    both: dict[str, Any] = {"local_lr": 0.05, "batch_size": 0, "local_steps": 10}
    scaffold = simulate(quadratic(), clients, Scaffold(**both), rounds=60)
    assert scaffold.model[0] == pytest.approx(3, abs=1e-4)
    # There the controls are the gradients at 3, and cancel.
    assert scaffold.c_i["left"][0] == pytest.approx(8, abs=1e-3)
    assert scaffold.c_i["right"][0] == pytest.approx(-8, abs=1e-3)
    assert scaffold.c[0] == pytest.approx(0, abs=1e-4)
    drifted = simulate(quadratic(), clients, FedAvg(**both), rounds=60)
    assert abs(drifted.model[0] - 3) > 0.5


def test_case_09_frozen_tensors_and_buffers_have_no_control() -> None:
    plan = buffered()
    assert (plan.n_train, plan.n_update, plan.n_params) == (2, 4, 5)
    clients = {"a": rows([1, 2]), "b": rows([3, 4])}
    algorithm = Scaffold(local_lr=0.5, server_lr=2.0, batch_size=0, local_steps=1)
    history = simulate(plan, clients, algorithm, rounds=1, check="event")
    # w: 1 - 2*.5*mean(g), g = 2x. The buffer: .5*seen + .5*x, averaged plainly (server_lr is
    # the optimiser's). The frozen scale stays.
    assert history.model.tolist() == [1 - 4, 1 - 6, 1.0, 5.5, 2.0]
    assert {name: c_i.tolist() for name, c_i in history.c_i.items()} == {"a": [2, 4], "b": [6, 8]}
    assert history.c.tolist() == [4, 6]
    assert history.control_gap == 0


@pytest.mark.parametrize("option", ["I", "II"])
def test_case_09_the_pass_for_option_one_leaves_the_buffers_alone(option: Any) -> None:
    algorithm = Scaffold(option=option, local_lr=0.5, batch_size=1, local_steps=1)
    outcome = run(buffered(), algorithm, [1, 1, 0, 8, 2], rows([1, 2], [1, 2], [1, 2]))
    assert outcome.delta_y.tolist() == [-1, -2, 0.5, -3]  # one step's move of the buffer
    assert outcome.delta_c is not None
    assert kernels.from_grid(outcome.delta_c[:]).tolist() == [2, 4]


def test_case_09_lengths_that_do_not_match_raise(tmp_path: Path) -> None:
    plan = buffered()
    data = rows([1, 2])
    for wrong in ({"c": np.zeros(4)}, {"c_i": np.zeros(4)}, {"c": np.zeros(4), "c_i": np.zeros(4)}):
        with pytest.raises(ValueError, match="the plan trains 2"):
            run(plan, Scaffold(batch_size=0, local_steps=1), [1, 1, 0, 8, 2], data, **wrong)
    store = Store("a", tmp_path / "device.db")
    store.adopt(1, control([1, 2, 3, 4]))
    with pytest.raises(StorageError, match="4 entries, the plan 2"):
        store.control(2)
    for c_i in ([1, 2, 3, 4], [1]):
        with pytest.raises(KelletError, match="the plan trains 2"):
            simulate(plan, {"a": data}, rounds=1, initial=State(x=[1, 1, 0, 8, 2], c_i={"a": c_i}))


@pytest.mark.parametrize("delta_c", [[1, 1, 0, 0], [1]])
def test_case_09_a_control_as_long_as_the_update_is_refused(delta_c: list[float]) -> None:
    lab = Lab(buffered(), Scaffold(delta_c="f32"))
    receipt = Puppet(lab).send([-0.5, -0.5, 0, 0], delta_c=delta_c)
    assert (receipt.counted, receipt.reason) == (False, "header")
    assert lab.machine.control.integers() == [0, 0]
    assert Puppet(lab, "b").send([-0.5, -0.5, 0, 0], delta_c=[1, 1]).counted
    assert lab.machine.control.integers() == [2**48, 2**48]


@pytest.mark.parametrize(
    "names", [{"gradient": "grad::seen"}, {"buffer": "buffer::w"}, {"gradient": "grad::v"}]
)
def test_case_09_names_that_do_not_match_raise(names: dict[str, str]) -> None:
    with pytest.raises(PlanError):
        buffered(**names)


def test_case_10_c_i_survives_kill_9_bit_for_bit(tmp_path: Path) -> None:
    """The files are copied while the process still has them open, as a kill leaves them."""
    c_i = np.array([2**47 + 1, -(2**50) - 3, 5], np.int64)
    update = Pending(b"u" * 16, 1, 1, 1, b"b" * 32, b"s" * 32, b"body", c_i)
    store = Store("a", tmp_path / "before" / "device.db")
    store.new_epoch(1)

    def killed(name: str) -> Store:
        shutil.copytree(tmp_path / "before", tmp_path / name)
        return Store("a", tmp_path / name / "device.db")

    store.save_pending(update)
    trained = killed("trained")
    assert trained.control(3).tolist() == [0, 0, 0]
    pending = trained.pending()
    assert pending is not None
    assert (pending.uid, pending.body) == (update.uid, update.body)
    assert pending.c_i_next is not None
    assert pending.c_i_next[:].tolist() == c_i.tolist()

    store.settle(update.uid, counted=True, reason="counted")
    settled = killed("settled")
    assert settled.control(3).tobytes() == c_i.tobytes()
    assert settled.pending() is None
    assert settled.audit() == store.audit()
    assert not settled.settle(update.uid, counted=True, reason="counted")  # not a second time
    assert settled.control(3).tobytes() == c_i.tobytes()
