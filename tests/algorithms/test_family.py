"""FedDyn, FedNova and SCAFFOLD-M against the papers' own lines, written out in float64."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from algorithms.local import rows
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic, softmax_regression

from kellet.sdk.algorithms import FedAvg, FedDyn, FedNova, Scaffold, ScaffoldM
from kellet.sdk.errors import UsageError
from kellet.server import FleetConfig, History, State, simulate
from kellet.server.algorithms import FedAdam, FedAvgM
from kellet.server.halves import Counted, NormalisedMean, half_of

TOLERANCE = 1e-5
ROUNDS, K, LR = 8, 5, 0.1


class Softmax:
    """Full-batch gradients of softmax regression over the clients of the golden traces."""

    def __init__(self) -> None:
        with np.load(Path(__file__).parents[1] / "data" / "golden_traces.npz") as file:
            traces = dict(file)
        self.data = [(traces[f"X{i}"].astype(np.float64), traces[f"Y{i}"]) for i in range(4)]
        self.schedule = [[int(i) for i in text.split(",")] for text in traces["sched"]]
        self.start = np.concatenate([traces["W0"].ravel(), traces["b0"]]).astype(np.float64)

    def gradient(self, client: int, w: Any) -> Any:
        x, y = self.data[client]
        scores = x @ w[:24].reshape(3, 8).T + w[24:]
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        p /= len(y)
        return np.concatenate([(p.T @ x).ravel(), p.sum(axis=0)])

    def simulate(self, algorithm: FedAvg, **options: Any) -> History:
        return simulate(
            softmax_regression(8, 3),
            {str(i): (x.astype(np.float32), y) for i, (x, y) in enumerate(self.data)},
            algorithm,
            rounds=ROUNDS,
            cohort=lambda round_, _members: [str(i) for i in self.schedule[round_ - 1]],
            initial=State(x=self.start),
            keep_models=True,
            check="event",
            **options,
        )


@pytest.fixture(scope="module")
def softmax() -> Softmax:
    return Softmax()


def test_feddyn_is_the_papers_algorithm_1(softmax: Softmax) -> None:
    alpha = float(np.float32(0.3))
    theta, h, g = softmax.start, np.zeros(27), np.zeros((4, 27))
    expected = []
    for chosen in softmax.schedule:
        local = []
        for k in chosen:
            y = theta.copy()
            for _ in range(K):
                y -= LR * (softmax.gradient(k, y) - g[k] + alpha * (y - theta))
            g[k] = g[k] - alpha * (y - theta)
            local.append(y)
        h = h - alpha / 4 * sum(y - theta for y in local)
        theta = np.mean(local, axis=0) - h / alpha
        expected.append(theta)
    history = softmax.simulate(FedDyn(alpha=alpha, local_lr=LR, batch_size=0, local_steps=K))
    assert np.abs(history.models - np.array(expected)).max() < TOLERANCE
    assert history.control_gap == 0
    assert np.abs(history.c - h).max() < TOLERANCE
    assert np.abs(np.stack([history.c_i[str(i)] for i in range(4)]) - g).max() < TOLERANCE


def test_scaffold_m_is_the_papers_algorithm_2(softmax: Softmax) -> None:
    beta, eta = 0.25, LR / 0.25
    x, m, c, c_i = softmax.start, np.zeros(27), np.zeros(27), np.zeros((4, 27))
    expected = []
    for chosen in softmax.schedule:
        deltas = []
        c_new = c_i.copy()
        for i in chosen:
            y, seen = x.copy(), np.zeros(27)
            for _ in range(K):
                g = softmax.gradient(i, y)
                seen += g / K
                y -= eta * (beta * (g - c_i[i] + c) + (1 - beta) * m)
            c_new[i] = seen
            deltas.append(y - x)
        m = -np.mean(deltas, axis=0) / (eta * K)
        x = x + np.mean(deltas, axis=0)
        c, c_i = c + (c_new - c_i).sum(axis=0) / 4, c_new
        expected.append(x)
    history = softmax.simulate(ScaffoldM(beta=beta, local_lr=LR, batch_size=0, local_steps=K))
    assert np.abs(history.models - np.array(expected)).max() < TOLERANCE
    assert history.control_gap == 0
    assert np.abs(history.c - c).max() < TOLERANCE


@pytest.mark.parametrize("delta_c", ["derived", "f32"])
def test_without_memory_scaffold_m_is_scaffold_to_the_bit(softmax: Softmax, delta_c: Any) -> None:
    local: Any = {"local_lr": LR, "batch_size": 0, "local_steps": K, "delta_c": delta_c}
    with_momentum, plain = (
        softmax.simulate(algorithm)
        for algorithm in (ScaffoldM(beta=1.0, **local), Scaffold(**local))
    )
    assert with_momentum.digest == plain.digest


def test_feddyn_without_drift_follows_the_gradient_of_the_fleet() -> None:
    """Two clients, 1/2 a (w - b)^2, everyone in every round, long local training.

    Worked by hand: with a = 1 and alpha = 1, y_i = (b_i + lambda_i + x)/2; the fixed point is the
    mean of b, with lambda_i = the gradient there.
    """
    history = simulate(
        quadratic(),
        {"a": rows([1, 3]), "b": rows([1, -1])},
        FedDyn(alpha=1.0, local_lr=0.25, batch_size=0, local_steps=60),
        rounds=40,
    )
    assert history.model[0] == pytest.approx(1.0, abs=1e-5)
    assert history.c_i["a"][0] == pytest.approx(-2.0, abs=1e-4)
    assert history.c_i["b"][0] == pytest.approx(2.0, abs=1e-4)


def uneven(algorithm: FedAvg, **options: Any) -> History:
    """One client of two equal samples with b = 1, one of six with b = -1, a step a sample."""
    clients = {"a": rows(*[[1, 1]] * 2), "b": rows(*[[1, -1]] * 6)}
    return simulate(quadratic(initial=4.0), clients, algorithm, **{"rounds": 1} | options)


def test_fednova_divides_by_the_steps_that_were_run() -> None:
    """y after K steps of rate 1/2: b + (4 - b)/2^K.

    a: K = 2, delta = -3 * 3/4 = -9/4, A = 1. b: K = 6, delta = -5 * 63/64, A = 3. In samples, 2 and
    6: mean(A) = (2 + 18)/8 = 5/2; mean(delta/A) = (-9/2 - 2 * 315/64)/8.
    """
    local: Any = {"local_lr": 0.5, "batch_size": 1}
    history = uneven(FedNova(**local))
    assert history.model[0] == pytest.approx(4 + 5 / 2 * (-9 / 2 - 315 / 32) / 8, abs=1e-6)
    uniform = uneven(FedNova(weighting="uniform", **local))
    assert uniform.model[0] == pytest.approx(4 + 2 * (-9 / 4 - 105 / 64) / 2, abs=1e-6)


def test_fednova_takes_momentum_out_as_it_weighs_steps() -> None:
    """beta = 1/2: s = 1, 3/2, 7/4, ...: after two steps of rate 1/2, A = 5/4."""
    local: Any = {"local_lr": 0.5, "batch_size": 1, "local_steps": 2, "momentum": 0.5}
    assert uneven(FedNova(**local)).model[0] == pytest.approx(uneven(FedAvg(**local)).model[0])
    half = half_of(FedNova(**local))
    update = Counted(samples=3, steps=2, rate_sum=1.25, loss=0.0, drift=0.0)
    assert half.summed(np.array([2.5], np.float32), update).tolist() == [2.0]


def test_fednova_with_equal_steps_is_fedavg() -> None:
    local: Any = {"local_lr": 0.25, "batch_size": 1, "local_steps": 4}
    histories = [uneven(kind(**local), rounds=3) for kind in (FedNova, FedAvg)]
    assert histories[0].model[0] == pytest.approx(histories[1].model[0], abs=1e-6)


def test_fednova_finds_the_optimum_that_uneven_steps_hide() -> None:
    """Of the samples' loss it is (2 - 6)/8; FedAvg with 2 and 6 steps goes elsewhere.

    With few small steps: the fixed point of sum n_i A_i (w - b_i) is (2*2 - 6*6)/(4 + 36) = -4/5.
    """
    local: Any = {"local_lr": 0.015, "batch_size": 1}
    nova, averaged = (uneven(kind(**local), rounds=250).model[0] for kind in (FedNova, FedAvg))
    assert nova == pytest.approx(-0.5, abs=0.02)
    assert averaged == pytest.approx(-0.8, abs=0.02)


def test_the_order_of_updates_does_not_matter() -> None:
    updates = [
        Counted(3, 2, rate, 0.0, 0.0, weight=7 * i + 1) for i, rate in enumerate((1e-9, 0.1, 7e5))
    ]
    half = NormalisedMean(FedNova())
    assert half.scale(updates) == half.scale(updates[::-1])
    exact = (1 * 1e-9 + 8 * 0.1 + 15 * 7e5) / 24
    assert half.scale(updates) == pytest.approx(exact, rel=1e-15)


def test_an_update_that_normalising_takes_out_of_range_is_refused() -> None:
    lab = Lab(linear_loss(1), FedNova(), target=2)
    receipt = Puppet(lab, "tiny").send([1.0], rate_sum=2.0**-14)
    assert (receipt.counted, receipt.reason) == (False, "range")
    assert Puppet(lab, "a").send([1.0], rate_sum=2.0**-13).counted
    assert Puppet(lab, "b").send([1.5], rate_sum=2.0**-13).counted
    assert lab.machine.model.tolist() == [1.25]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="diverges from 2"):
        FedDyn(alpha=40, local_lr=0.1)
    with pytest.raises(UsageError, match="momentum"):
        FedDyn(momentum=0.9)
    with pytest.raises(UsageError, match="weighting"):
        FedDyn(weighting="samples")
    with pytest.raises(UsageError, match="server_lr"):
        FedDyn(server_lr=0.5)
    with pytest.raises(UsageError, match="beta"):
        ScaffoldM(beta=0)
    with pytest.raises(UsageError, match="fixes the step"):
        FleetConfig(algorithm=FedDyn(), server_optimizer=FedAdam())
    with pytest.raises(UsageError, match="no int8 step"):
        FleetConfig(algorithm=FedDyn(), schemes=("w8.row",))
    assert FleetConfig(algorithm=ScaffoldM(), server_optimizer=FedAvgM()).server_optimizer


def test_the_moments_of_optimizer_and_half_last_together(softmax: Softmax) -> None:
    """Both go on from round to round: with one dropped, the second round would differ."""
    local: Any = {"local_lr": LR, "batch_size": 0, "local_steps": K}
    both = softmax.simulate(ScaffoldM(beta=0.5, **local), server_optimizer=FedAvgM(server_lr=0.5))
    plain = softmax.simulate(Scaffold(**local), server_optimizer=FedAvgM(server_lr=0.5))
    assert np.array_equal(both.models[0], plain.models[0])  # before the first, m is 0
    assert np.abs(both.models[1] - plain.models[1]).max() > 1e-3
    assert both.control_gap == plain.control_gap == 0


def warm(first: str, **options: Any) -> History:
    """Constant gradients of 1 and -3, rate 1/4, two steps; ``first`` alone in the first round."""
    return simulate(
        linear_loss(1),
        {"a": rows([1.0]), "b": rows([-3.0])},
        Scaffold(local_lr=0.25, local_steps=2, **options),
        rounds=2,
        cohort=lambda round_, _members: [first] if round_ == 1 else ["a", "b"],
        keep_models=True,
        check="event",
    )


@pytest.mark.parametrize("delta_c", ["derived", "f32"])
def test_a_warm_start_spares_newcomers_the_control(delta_c: Any) -> None:
    """After a's round c = 1/2. Then b, new, walks along -3, and a along 1 - 1 + 1/2 = 1/2.

    Cold, b would walk along -3 + 1/2. Its c_i is -3 either way.
    """
    history = warm("a", warm_start=True, delta_c=delta_c)
    assert [m[0] for m in history.models] == [-0.5, -0.5 + (1.5 - 0.25) / 2]
    assert [history.c_i["a"][0], history.c_i["b"][0]] == [1, -3]
    cold = warm("a", delta_c=delta_c)
    assert cold.models[1][0] == -0.5 + (1.25 - 0.25) / 2
    assert cold.c_i["b"][0] == -3
    assert history.control_gap == cold.control_gap == 0


def test_only_a_newcomer_is_spared() -> None:
    lab = Lab(linear_loss(1), Scaffold(warm_start=True), target=2)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    assert a.send([1.0], rate_sum=1.0, spared=True).counted
    assert b.send([1.0], rate_sum=1.0, spared=True).counted
    assert lab.machine.control.integers() == [-(2**49)]
    receipt = a.send([1.0], rate_sum=1.0, spared=True)
    assert (receipt.counted, receipt.reason) == (False, "inconsistent")
    plain = Lab(linear_loss(1), Scaffold(), target=2)
    assert Puppet(plain, "a").send([1.0], spared=True).reason == "header"
