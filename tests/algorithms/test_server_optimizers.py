"""The server's optimisers: two steps of each worked by hand, and what they must leave alone."""

import dataclasses
import json
import struct
from typing import Any

import numpy as np
import pytest
from algorithms.local import rows, skewed
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic, softmax_regression, stateful

from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.errors import UsageError
from kellet.server import FleetConfig, History, State, optimizers, simulate
from kellet.server.algorithms import FedAdagrad, FedAdam, FedAvgM, FedYogi, apply_mean
from kellet.server.optimizers import OPTIMIZERS, PlainMean, ServerOptimizer
from kellet.server.sums import ExactSum

# (optimiser, [(mean, m, v, step)]): every number is exact in float64, but for the quotients.
WORKED: list[tuple[ServerOptimizer, list[tuple[float, float, float | None, float]]]] = [
    (
        FedAvgM(server_lr=0.5, server_momentum=0.5),
        # m = 3; then .5*3 - 1
        [(3.0, 3.0, None, 1.5), (-1.0, 0.5, None, 0.25)],
    ),
    (
        FedAdagrad(server_lr=8.0, beta1=0.0, tau=3.0),
        # v = 9 + 16, 8*4/(5 + 3); then v = 25 + 144, 8*12/(13 + 3)
        [(4.0, 4.0, 25.0, 4.0), (12.0, 12.0, 169.0, 6.0)],
    ),
    (
        FedAdagrad(server_lr=8.0, beta1=0.5, tau=3.0),
        # m = .5*4, 8*2/8; then m = .5*2 + .5*12, 8*7/16
        [(4.0, 2.0, 25.0, 2.0), (12.0, 7.0, 169.0, 3.5)],
    ),
    (
        FedAdam(server_lr=6.0, beta1=0.5, beta2=0.5, tau=1.0),
        # v = (1 + 49)/2, 6*3.5/(5 + 1); then m = 1.75 - 17.5, v = (25 + 1225)/2
        [(7.0, 3.5, 25.0, 3.5), (-35.0, -15.75, 625.0, -94.5 / 26)],
    ),
    (
        FedYogi(server_lr=2.0, beta1=0.5, beta2=0.75, tau=3.0),
        # 9 < 64: v = 9 + .25*64, 2*4/(5 + 3); then 25 > 16: v = 25 - .25*16 (Adam's would be 22.75)
        [(8.0, 4.0, 25.0, 1.0), (4.0, 4.0, 21.0, 8 / (21**0.5 + 3))],
    ),
]
ALL = [FedAvgM(), FedAdagrad(), FedAdam(), FedYogi()]
named = pytest.mark.parametrize("optimizer", ALL, ids=lambda o: o.name)


@pytest.mark.parametrize(("optimizer", "steps"), WORKED)
def test_two_steps_by_hand(
    optimizer: ServerOptimizer, steps: list[tuple[float, float, float | None, float]]
) -> None:
    moments = optimizer.start(1)
    for mean, m, v, step in steps:
        assert optimizer.step(np.array([mean]), moments)[0] == pytest.approx(step, rel=1e-15)
        assert moments[:, 0].tolist() == ([m] if v is None else [m, v])


@pytest.mark.parametrize(("optimizer", "steps"), WORKED)
def test_the_same_two_steps_in_a_fleet(
    optimizer: ServerOptimizer, steps: list[tuple[float, float, float | None, float]]
) -> None:
    """Two devices' updates, one with twice the samples, whose weighted mean is the one above."""
    lab = Lab(quadratic(), FedAvg(), target=2, server_optimizer=optimizer)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    model = 0.0
    for round_, (mean, m, v, step) in enumerate(steps, 1):
        a.send([mean + 1], samples=1)
        b.send([mean - 0.5], samples=2)  # (mean + 1)/3 + (mean - .5)*2/3
        before, model = model, float(lab.machine.model[0])
        assert model - before == pytest.approx(step, abs=1e-6)
        summary = lab.ledger.rounds()[round_ - 1].summary
        assert summary["step_norm"] == pytest.approx(abs(step), rel=1e-12)
        name, raw = lab.ledger.moments() or ("", b"")
        moments = np.frombuffer(raw, "<f8").tolist()
        assert name == optimizer.name
        assert moments == pytest.approx([m] if v is None else [m, v], rel=1e-12)


def test_each_update_is_rounded_once_from_float64() -> None:
    """A little more than half a unit of 1's last place; in float32 it would be just half."""
    total = ExactSum(1)
    total.add(np.array([2.0**-24 + 2.0**-40]))
    moved = apply_mean(np.ones(1, np.float32), total, 1, PlainMean(), n_train=1)
    assert moved.model[0] == np.float32(1 + 2.0**-23)
    assert moved.step_norm == 2.0**-24 + 2.0**-40
    assert moved.kept is None


def test_no_momentum_is_the_plain_mean_to_the_bit() -> None:
    plan, clients = softmax_regression(4, 3), skewed({"a": 20, "b": 33, "c": 5})
    local: dict[str, Any] = {"local_lr": 0.1, "batch_size": 8}
    plain = simulate(plan, clients, FedAvg(server_lr=0.75, **local), rounds=3)
    none = FedAvgM(server_lr=0.75, server_momentum=0)
    assert simulate(plan, clients, FedAvg(**local), server_optimizer=none, rounds=3).digest == (
        plain.digest
    )
    some = dataclasses.replace(none, server_momentum=0.5)
    other = simulate(plan, clients, FedAvg(**local), server_optimizer=some, rounds=3)
    assert other.digest != plain.digest


@named
def test_case_17_five_rounds_of_nothing_stay_finite(optimizer: ServerOptimizer) -> None:
    lab = Lab(linear_loss(2, initial=[1, 2]), FedAvg(), target=1, server_optimizer=optimizer)
    device = Puppet(lab)
    for _ in range(5):
        device.send([0, 0])
    assert lab.machine.model.tolist() == [1, 2]  # nothing was learned, and nothing is moved
    device.send([1, -1])
    for _ in range(50):
        device.send([0, 0])
    _, raw = lab.ledger.moments() or ("", b"")
    assert np.isfinite(np.frombuffer(raw, "<f8")).all()
    assert np.isfinite(lab.machine.model).all()


@pytest.mark.parametrize("kind", [FedAdagrad, FedAdam, FedYogi])
@pytest.mark.parametrize("tau", [1e-12, 1e-3, 10.0])
def test_case_17_no_second_moment_is_negative(kind: Any, tau: float) -> None:
    """Means over 40 orders of magnitude, zero among them, with beta2 at its edges, too."""
    rng = np.random.default_rng(1)
    shares = [{}] if kind is FedAdagrad else [{"beta2": b} for b in (0, 0.3, 0.99, 1 - 2.0**-53)]
    for share in shares:
        optimizer = kind(tau=tau, **share)
        moments = optimizer.start(1000)
        for _ in range(100):
            size = 10.0 ** rng.uniform(-36, 4, 1000) * rng.integers(0, 2, 1000)
            step = optimizer.step(size * rng.choice([-1, 1], 1000), moments)
            assert (moments[1] >= 0).all()
            assert np.isfinite(step).all()


def test_case_17_yogi_at_the_point_where_its_sign_turns() -> None:
    """v equal to the square of the mean stays; a little above and below it moves towards it."""
    optimizer = FedYogi(beta2=0.5, tau=2.0)
    moments = optimizer.start(3)
    moments[1] = [4.0, 4.0 + 2.0**-40, 4.0 - 2.0**-40]
    optimizer.step(np.full(3, 2.0), moments)
    assert moments[1].tolist() == [4.0, 2.0 + 2.0**-40, 6.0 - 2.0**-40]


@named
def test_case_17_buffers_are_averaged_plainly(optimizer: ServerOptimizer) -> None:
    """w is moved by the optimiser; m, a running mean, is the mean of the devices'; f stays."""
    clients = {"a": rows([4.0]), "b": rows([8.0]), "c": rows([9.0])}
    local: dict[str, Any] = {"local_lr": 0.5, "batch_size": 0, "local_steps": 1}
    histories = {
        o: simulate(stateful(f=1.0), clients, FedAvg(**local), server_optimizer=o, rounds=2)
        for o in (None, optimizer)
    }
    plain, other = histories[None].model, histories[optimizer].model
    # m: 0 -> 3.5 -> 5.25, whatever w does.
    assert plain[1:].tolist() == other[1:].tolist() == [5.25, 1.0]
    assert plain[0] != other[0]
    # Its moments are those of w alone.
    total = ExactSum(2)
    total.add(np.array([1.0, 7.0]))
    moved = apply_mean(np.zeros(3, np.float32), total, 1, optimizer, n_train=1)
    assert moved.kept is not None
    assert len(moved.kept[1]) == 8 * optimizer.moments
    assert moved.model[1:].tolist() == [7.0, 0.0]
    assert moved.step_norm == pytest.approx(abs(moved.model[0]), rel=1e-6)


@named
def test_controls_are_none_of_an_optimizer_s_business(optimizer: ServerOptimizer) -> None:
    """Whoever makes the step, C moves by -delta_y/A, undamped and by no server_lr."""
    integers = []
    for chosen in (None, optimizer):
        lab = Lab(linear_loss(2), Scaffold(), target=1, server_optimizer=chosen)
        Puppet(lab).send([0.5, -1.0], rate_sum=0.25)
        integers.append(lab.machine.control.integers())
    assert integers[0] == integers[1] == [-2 * 2**48, 4 * 2**48]


@pytest.mark.parametrize("algorithm", [FedAvg, FedProx, Scaffold])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"uplink": "q8", "downlink": "q8"},
        {"uplink": "topk", "share": 0.5},
        {"uplink": "q8", "feedback": True},
    ],
    ids=["f32", "q8", "topk", "feedback"],
)
@named
def test_it_composes(optimizer: ServerOptimizer, algorithm: Any, how: dict[str, Any]) -> None:
    """With each algorithm and codec: it learns, it holds the invariant, and it repeats itself."""
    value = algorithm(local_lr=0.1, batch_size=8, local_epochs=2)
    if how.get("feedback") and algorithm is Scaffold:
        value = dataclasses.replace(value, delta_c="f32")
    clients = skewed({"a": 20, "b": 33, "c": 5})

    def run() -> History:
        return simulate(
            softmax_regression(4, 3),
            clients,
            value,
            server_optimizer=optimizer,
            rounds=4,
            cohort=2,
            test=(np.concatenate([x for x, _ in clients.values()]),
                  np.concatenate([y for _, y in clients.values()])),
            check="event",
            **how,
        )  # fmt: skip

    history = run()
    assert history.control_gap == 0
    assert history.loss is not None
    assert history.loss < 0.9 * np.log(3)
    assert run().digest == history.digest
    norms = [record.step_norm for record in history.rounds]
    assert all(norm is not None and norm > 0 for norm in norms)


@named
def test_it_composes_with_int8_weights(optimizer: ServerOptimizer) -> None:
    rng = np.random.default_rng(0)
    clients = {
        name: (rng.standard_normal((64, 43)).astype(np.float32), rng.integers(0, 6, 64))
        for name in "ab"
    }
    for algorithm in (FedAvg(local_lr=0.05), Scaffold(local_lr=0.05, control_damping=0.1)):
        history = simulate(
            "wisdm", clients, algorithm, server_optimizer=optimizer, rounds=2, scheme="w8.row"
        )
        assert history.control_gap == 0
        assert np.isfinite(history.model).all()
        assert history.rounds[-1].schemes == {"w8.row/1": 2}


def test_the_step_s_norm_is_told_of_a_plain_round_too() -> None:
    start = State(x=[0.0, 0.0])
    algorithm = FedAvg(server_lr=0.5, local_lr=1, batch_size=0, local_steps=1)
    history = simulate(linear_loss(2), {"a": rows([6, 8])}, algorithm, rounds=1, initial=start)
    assert history.rounds[0].step_norm == 5.0


# -- names, values, and what is refused --------------------------------------------------


def test_names_and_values() -> None:
    assert {name: optimizers.make(name) for name in OPTIMIZERS} == {o.name: o for o in ALL}
    for optimizer in ALL:
        wire = json.loads(json.dumps(optimizer.wire()))
        assert optimizers.from_wire(wire, 0.5) == optimizer
    assert optimizers.from_wire(None, 0.5) == PlainMean(server_lr=0.5)
    adam = simulate(quadratic(), {"a": rows([1, 3])}, "fedavg", server_optimizer="adam", rounds=1)
    value = FedAdam(server_lr=0.1, beta1=0.9, beta2=0.99, tau=1e-3)  # the defaults
    assert FedAdam() == value
    again = simulate(quadratic(), {"a": rows([1, 3])}, FedAvg(), server_optimizer=value, rounds=1)
    assert adam.digest == again.digest
    # v = .99e-6 + .01*.15^2, m = .015: nearly the whole of server_lr, as the first step is.
    assert adam.model[0] == pytest.approx(0.1 * 0.015 / ((0.99e-6 + 2.25e-4) ** 0.5 + 1e-3))


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        (FedAdam, {"server_lr": 0}, "server_lr = 0.0"),
        (FedAdam, {"server_lr": np.inf}, "server_lr = inf"),
        (FedAdam, {"server_lr": True}, "server_lr = True"),
        (FedAdam, {"beta1": 1.0}, "beta1 = 1.0"),
        (FedAdagrad, {"beta1": -0.1}, "beta1 = -0.1"),
        (FedYogi, {"beta2": 1}, "beta2 = 1.0"),
        (FedYogi, {"beta2": "0.9"}, "beta2 = '0.9'"),
        (FedYogi, {"tau": 0.0}, "tau = 0.0"),
        (FedAvgM, {"server_momentum": 1.0}, "server_momentum = 1.0"),
        (FedAvgM, {"server_momentum": np.nan}, "server_momentum = nan"),
    ],
)
def test_hyperparameters_out_of_range(kind: Any, given: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        kind(**given)
    assert caught.value.what == text
    assert caught.value.repair


def test_wrong_combinations_are_refused_with_the_repair() -> None:
    with pytest.raises(UsageError, match=r"FedAdam\(server_lr=0.5\), and leave the algorithm's"):
        FleetConfig(algorithm=FedAvg(server_lr=0.5), server_optimizer=FedAdam())
    with pytest.raises(UsageError, match="FedAdam"):
        FleetConfig(server_optimizer="adam")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="choose one of avgm, adagrad, adam, yogi"):
        simulate(quadratic(), {"a": rows([1, 3])}, server_optimizer="adamw")
    with pytest.raises(UsageError, match="it has server_lr, server_momentum"):
        optimizers.make("avgm", beta1=0.9)


def test_the_moments_have_the_same_bytes_on_every_machine() -> None:
    optimizer, x = FedAdam(), np.zeros(2, np.float32)
    total = ExactSum(2)
    total.add(np.array([0.5, -0.25], np.float32))
    first = apply_mean(x, total, 1, optimizer, 2)
    assert first.kept is not None
    name, raw = first.kept
    assert (name, len(raw)) == ("adam", 32)
    assert struct.unpack("<4d", raw) == pytest.approx((0.05, -0.025, 0.002500990, 0.000625990))
    on, anew = (apply_mean(x, total, 1, optimizer, 2, kept) for kept in (first.kept, ("yogi", raw)))
    assert anew.kept == first.kept  # another's moments: from the start
    assert on.kept is not None
    assert struct.unpack("<2d", on.kept[1][:16]) == pytest.approx((0.095, -0.0475))
