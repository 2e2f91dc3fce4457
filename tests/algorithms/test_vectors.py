"""Every number of ``tests/data/vectors.json``, through the code that devices and servers run.

Each test first states the numbers; the file must agree with them. A device's step is
``trainer.train`` on a plan's real gradients, a server's is what the aggregator calls,
and whole rounds go through ``simulate``.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from algorithms.local import control, rows, run
from support.toy_plans import linear_loss, quadratic

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.server import History, State, algorithms, simulate
from kellet.server.optimizers import PlainMean
from kellet.server.sums import ExactSum

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "vectors.json").read_text())
REMARKS = {"_about", "_note", "why"}
CLOSE = {"rel": 1e-6, "abs": 1e-6}  # float32
# A float32 near 10 moves in steps of 1e-6, and delta_c divides its change by A = .1 or .2.
DIVIDED = {"abs": 1e-5}


def stated(name: str, **numbers: Any) -> dict[str, Any]:
    """The numbers, once they are known to be the file's (without its remarks)."""
    assert _bare(VECTORS[name]) == numbers
    return numbers


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items() if key not in REMARKS}
    return [_bare(item) for item in value] if isinstance(value, list) else value


def test_every_vector_has_a_test() -> None:
    assert set(VECTORS) - REMARKS == {
        "fedavg_mix",
        "gradient_habit",
        "server_control_mean",
        "corrected_gradient",
        "first_order_loss",
        "scaffold_round",
        "fedprox_walk",
        "scaffold_partial_trace",
    }


@pytest.mark.parametrize(("w", "result"), [([1.0, 3.0, 5.0], 2.5), ([20.0, 3.0, 5.0], 12.0)])
def test_fedavg_mix(w: list[float], result: float) -> None:
    n = [100, 50, 50]
    assert {"n": n, "w": w, "result": result} in VECTORS["fedavg_mix"]
    assert len(VECTORS["fedavg_mix"]) == 2
    # At rate 1 one step on 0.5*(w - b)^2 lands on b: client i's model becomes w_i.
    clients = {
        f"client-{i}": rows(*[[1, target]] * count)
        for i, (count, target) in enumerate(zip(n, w, strict=True))
    }
    mix = simulate(quadratic(), clients, FedAvg(local_lr=1, batch_size=0, local_steps=1), rounds=1)
    assert mix.model.tolist() == [result]
    uniform = FedAvg(local_lr=1, batch_size=0, local_steps=1, weighting="uniform")
    plain = simulate(quadratic(), clients, uniform, rounds=1)
    assert plain.model.tolist() == pytest.approx([sum(w) / 3], **CLOSE)


def test_gradient_habit() -> None:
    """Option I's c_i is the mean of the gradients at x, here of four batches of one."""
    v = stated(
        "gradient_habit",
        packs=[[4, -2, 1], [5, -1, 2], [4, -3, 1], [6, -2, 0]],
        mean=[4.75, -2.0, 1.0],
        spoken_c1=[5, -2, 1],
    )
    option_one = Scaffold(option="I", local_lr=0.1, batch_size=1, local_steps=1)
    history = simulate(linear_loss(3), {"client": rows(*v["packs"])}, option_one, rounds=1)
    assert history.c_i["client"].tolist() == v["mean"]
    assert history.c.tolist() == v["mean"]
    assert np.rint(history.c_i["client"]).tolist() == v["spoken_c1"]
    assert history.control_gap == 0


def test_gradient_habit_weighs_the_short_last_batch_by_its_size() -> None:
    # Batches of 3 and 1: the mean of their means would be (4.33 + 6)/2.
    option_one = Scaffold(option="I", local_lr=0.1, batch_size=3, local_steps=1)
    data = rows([4, -2, 1], [5, -1, 2], [4, -3, 1], [6, -2, 0])
    outcome = run(linear_loss(3), option_one, np.zeros(3), data)
    assert outcome.delta_c is not None
    assert kernels.from_grid(outcome.delta_c[:]).tolist() == pytest.approx([4.75, -2, 1], **CLOSE)


def test_server_control_mean() -> None:
    v = stated(
        "server_control_mean",
        c_i=[[5, -2, 1], [-3, 4, -1], [1, 0, 2]],
        c=[1.0, 0.6666666666666666, 0.6666666666666666],
    )
    total = ExactSum(3)
    for c_i in v["c_i"]:
        total.add_grid(control(c_i))
    assert total.mean(3).tolist() == v["c"]  # to the last bit of float64
    announced = algorithms.announced_control(total, 3)
    assert announced.tolist() == np.float32(v["c"]).tolist()


def test_corrected_gradient() -> None:
    v = stated(
        "corrected_gradient",
        g=[7, -1, 3],
        c_i=[5, -2, 1],
        c=[1.0, 0.6666666666666666, 0.6666666666666666],
        result=[3.0, 1.6666666666666667, 2.6666666666666665],
        **{"not": "g + c, which keeps the local habit"},
    )
    one_step = Scaffold(local_lr=1, batch_size=0, local_steps=1)
    outcome = run(linear_loss(3), one_step, np.zeros(3), rows(v["g"]), c=v["c"], c_i=v["c_i"])
    assert (-outcome.delta_y).tolist() == pytest.approx(v["result"], **CLOSE)
    with_habit = np.add(v["g"], v["c"])
    assert np.abs(-outcome.delta_y - with_habit).min() > 0.9


def test_corrected_gradient_in_a_round_of_three_members() -> None:
    """The fleet of server_control_mean, its first device alone in the round."""
    start = State(
        x=np.zeros(3), c_i={"a": [5, -2, 1], "b": [-3, 4, -1], "c": [1, 0, 2]}, C=[3, 2, 2]
    )
    history = simulate(
        linear_loss(3),
        {"a": rows([7, -1, 3]), "b": rows([0, 0, 0]), "c": rows([0, 0, 0])},
        Scaffold(local_lr=1, batch_size=0, local_steps=1),
        rounds=1,
        cohort=lambda _round, _members: ["a"],
        initial=start,
    )
    assert (-history.model).tolist() == pytest.approx([3, 5 / 3, 8 / 3], **CLOSE)


def test_first_order_loss() -> None:
    v = stated(
        "first_order_loss",
        w=[2, 5, 1],
        loss=12.0,
        g=[4, -2, 1],
        **{"nudge_w1_0.1": 12.4, "nudge_w2_0.1": 11.8},
    )
    plan = linear_loss(3, offset=13.0)  # 4*2 - 2*5 + 1*1 + 13 = 12
    session = plan.session()
    session.params[:] = v["w"]
    x, y = plan.check_data(*rows(v["g"]))
    assert session.step(x, y) == v["loss"]
    assert session.grads.tolist() == v["g"]
    for index, nudged in [(0, v["nudge_w1_0.1"]), (1, v["nudge_w2_0.1"])]:
        session.params[:] = v["w"]
        session.params[index] += 0.1
        assert session.step(x, y) == pytest.approx(nudged, **CLOSE)
        assert v["loss"] + 0.1 * v["g"][index] == pytest.approx(nudged)
    for w, loss in [([2, 5, 1], 12.0), ([2.1, 5, 1], 12.4), ([2, 5.1, 1], 11.8)]:
        history = simulate(
            plan,
            {"client": rows(v["g"])},
            FedAvg(local_lr=0.1, batch_size=0, local_steps=1),
            rounds=1,
            initial=State(x=w),
        )
        assert history.rounds[0].train_loss == pytest.approx(loss, **CLOSE)


SCAFFOLD_CLIENTS = [
    {
        "c_i": 5.0,
        "g": 9.0,
        "corrected": 6.0,
        "path": [10.0, 9.4, 8.8],
        "c_i_plus": 9.0,
        "delta_y": -1.2,
        "delta_c": 4.0,
    },
    {
        "c_i": 1.0,
        "g": 3.0,
        "corrected": 4.0,
        "path": [10.0, 9.6, 9.2],
        "c_i_plus": 3.0,
        "delta_y": -0.8,
        "delta_c": 2.0,
    },
]


def scaffold_round() -> dict[str, Any]:
    return stated(
        "scaffold_round",
        x=10.0,
        c=2.0,
        lr=0.1,
        K=2,
        N=4,
        S=2,
        server_lr=1.0,
        clients=SCAFFOLD_CLIENTS,
        delta_x=-1.0,
        x_plus=9.0,
        c_plus=3.5,
        full_participation={"N": 2, "c_plus": 5.0},
        **{"not": {"x_plus": 11.0, "c_plus": 5.0}},
    )


@pytest.mark.parametrize("client", SCAFFOLD_CLIENTS)
@pytest.mark.parametrize("steps", [1, 2])
def test_scaffold_round_on_a_device(client: dict[str, Any], steps: int) -> None:
    """The path, one step and two, and the pair that the device sends."""
    v = scaffold_round()
    algorithm = Scaffold(local_lr=v["lr"], batch_size=0, local_steps=steps)
    outcome = run(
        linear_loss(1), algorithm, v["x"], rows([client["g"]]), c=v["c"], c_i=client["c_i"]
    )
    assert v["x"] + outcome.delta_y[0] == pytest.approx(client["path"][steps], **CLOSE)
    corrected = -outcome.delta_y[0] / outcome.rate_sum
    assert corrected == pytest.approx(client["corrected"], **DIVIDED)
    # A constant gradient: the control comes to the gradient, after any number of steps.
    assert outcome.delta_c is not None
    assert kernels.from_grid(outcome.delta_c[:])[0] == pytest.approx(client["delta_c"], **DIVIDED)
    c_i_plus = kernels.from_grid(control(client["c_i"]) + outcome.delta_c[:])[0]
    assert c_i_plus == pytest.approx(client["c_i_plus"], **DIVIDED)
    if steps == v["K"]:
        assert outcome.steps == v["K"]
        assert outcome.delta_y[0] == pytest.approx(client["delta_y"], **CLOSE)


@pytest.mark.parametrize("delta_c", ["derived", "f32"])
def test_scaffold_round_of_two_among_four(delta_c: Any) -> None:
    v = scaffold_round()
    first, second = v["clients"]
    history = simulate(
        linear_loss(1),
        {
            "a": rows([first["g"]]),
            "b": rows([second["g"]]),
            "absent-1": rows([100]),
            "absent-2": rows([100]),
        },
        Scaffold(
            local_lr=v["lr"],
            server_lr=v["server_lr"],
            batch_size=0,
            local_steps=v["K"],
            delta_c=delta_c,
        ),
        rounds=1,
        cohort=lambda _round, _members: ["a", "b"],
        # The absent two make c the mean of four: (5 + 1 + 1.5 + .5)/4 = 2.
        initial=State(
            x=[v["x"]],
            c_i={"a": [first["c_i"]], "b": [second["c_i"]], "absent-1": [1.5], "absent-2": [0.5]},
            C=[v["N"] * v["c"]],
        ),
        check="event",
    )
    assert len(history.rounds[0].counted) == v["S"]
    assert history.model[0] == pytest.approx(v["x_plus"], **CLOSE)
    assert history.model[0] - v["x"] == pytest.approx(v["delta_x"], **CLOSE)
    assert history.c[0] == pytest.approx(v["c_plus"], **DIVIDED)
    assert history.c_i["a"][0] == pytest.approx(first["c_i_plus"], **DIVIDED)
    assert history.c_i["b"][0] == pytest.approx(second["c_i_plus"], **DIVIDED)
    assert history.c_i["absent-1"].tolist() == [1.5]
    assert history.c_i["absent-2"].tolist() == [0.5]
    assert history.control_gap == 0
    assert abs(history.model[0] - v["not"]["x_plus"]) > 1.9
    assert abs(history.c[0] - v["not"]["c_plus"]) > 1.4


def test_scaffold_round_with_full_participation() -> None:
    """The server's step alone: a c of 2 is not the mean of 5 and 1."""
    v = scaffold_round()
    members = v["full_participation"]["N"]
    total, moved = ExactSum(1), ExactSum(1)
    total.add_grid(control([members * v["c"]]))
    for client in v["clients"]:
        total.add_grid(control([client["delta_c"]]))
        moved.add(np.array([client["delta_y"]], np.float32))
    c_plus = algorithms.announced_control(total, members)
    assert c_plus.tolist() == [v["full_participation"]["c_plus"]]
    x = np.array([v["x"]], np.float32)
    plain = PlainMean(server_lr=v["server_lr"])
    x_plus = algorithms.apply_mean(x, moved, members, plain, n_train=1).model
    assert x_plus.tolist() == pytest.approx([v["x_plus"]], **CLOSE)
    assert x.tolist() == [v["x"]]


def fedprox_walk() -> dict[str, Any]:
    return stated(
        "fedprox_walk",
        x=10.0,
        mu=2.0,
        lr=0.1,
        g=9.0,
        path=[10.0, 9.1, 8.38],
        modified_gradient=7.2,
        without_prox=[10.0, 9.1, 8.2],
        distance={"with": 1.62, "without": 1.8},
        mu_0="is FedAvg, bit for bit",
        **{"penalty_gradient_at_9.1": -1.8},
    )


@pytest.mark.parametrize("steps", [1, 2])
def test_fedprox_walk(steps: int) -> None:
    v = fedprox_walk()
    data = rows([v["g"]])
    leash = FedProx(mu=v["mu"], local_lr=v["lr"], batch_size=0, local_steps=steps)
    free = FedAvg(local_lr=v["lr"], batch_size=0, local_steps=steps)
    held, loose = (run(linear_loss(1), a, v["x"], data) for a in (leash, free))
    assert v["x"] + held.delta_y[0] == pytest.approx(v["path"][steps], **CLOSE)
    assert v["x"] + loose.delta_y[0] == pytest.approx(v["without_prox"][steps], **CLOSE)
    if steps == 2:
        assert held.drift == pytest.approx(v["distance"]["with"], **CLOSE)
        assert loose.drift == pytest.approx(v["distance"]["without"], **CLOSE)
        second = v["path"][1] - (v["x"] + held.delta_y[0])
        assert second / v["lr"] == pytest.approx(v["modified_gradient"], abs=2e-5)


def test_fedprox_penalty_gradient_is_that_of_the_reported_objective() -> None:
    """mu*(w - x) at 9.1 is -1.8: of the term itself, and of what a device reports."""
    v = fedprox_walk()
    wanted = v["penalty_gradient_at_9.1"]
    algorithm = FedProx(mu=v["mu"], local_lr=v["lr"], batch_size=0, local_steps=2)

    def penalty(w: float) -> float:
        point, x = np.array([w], np.float32), np.array([v["x"]], np.float32)
        return algorithm.penalty(kernels.distance(point, x))

    slope = (penalty(9.1 + 0.25) - penalty(9.1 - 0.25)) / 0.5
    assert slope == pytest.approx(wanted, abs=1e-5)

    def reported(lr: float) -> tuple[float, float]:
        """Where the second step starts, and the term there (it is zero at the first)."""
        outcome = run(
            linear_loss(1), dataclasses.replace(algorithm, local_lr=lr), v["x"], rows([v["g"]])
        )
        return v["x"] - v["g"] * lr, 2 * (outcome.objective - outcome.loss)

    (far, term_far), (near, term_near) = reported(0.125), reported(0.075)
    assert (far + near) / 2 == pytest.approx(9.1)
    assert (term_far - term_near) / (far - near) == pytest.approx(wanted, abs=1e-5)
    assert v["g"] + wanted == pytest.approx(v["modified_gradient"])


def test_scaffold_partial_trace() -> None:
    """Three rounds of two clients from zero state, every number of every round."""
    rounds = [
        {
            "delta_y": [-0.19, 0.72],
            "delta_c": [0.95, -3.6],
            "x": 1.265,
            "c": -1.325,
            "c_i": [0.95, -3.6],
        },
        {
            "delta_y": [0.1919, 0.2151],
            "delta_c": [0.3655, 0.2495],
            "x": 1.4685,
            "c": -1.0175,
            "c_i": [1.3155, -3.3505],
        },
        {
            "delta_y": [0.164255, 0.1314],
            "delta_c": [0.196225, 0.3605],
            "x": 1.6163275,
            "c": -0.7391375,
            "c_i": [1.511725, -2.99],
        },
    ]
    v = stated(
        "scaffold_partial_trace",
        a=[1, 2],
        b=[0, 3],
        x0=1.0,
        lr=0.1,
        K=2,
        rounds=rounds,
        N4_client0_only={"c_after": 0.2375, "not": 0.95},
    )
    clients, algorithm = trace_of(v)
    x, c, c_i = [v["x0"]], [0.0], {name: [0.0] for name in clients}
    for number, wanted in enumerate(rounds, 1):
        for client, data in enumerate(clients.values()):
            sent = run(quadratic(), algorithm, x, data, c=c, c_i=c_i[f"client-{client}"])
            assert sent.delta_y[0] == pytest.approx(wanted["delta_y"][client], **CLOSE)
            assert sent.delta_c is not None
            delta_c = kernels.from_grid(sent.delta_c[:])[0]
            assert delta_c == pytest.approx(wanted["delta_c"][client], **CLOSE)
        after = simulate(
            quadratic(initial=v["x0"]), clients, algorithm, rounds=number, check="event"
        )
        assert after.model[0] == pytest.approx(wanted["x"], **CLOSE)
        assert after.c[0] == pytest.approx(wanted["c"], **CLOSE)
        assert [q[0] for q in after.c_i.values()] == pytest.approx(wanted["c_i"], **CLOSE)
        assert after.control_gap == 0
        x, c = after.model.tolist(), after.c.tolist()
        c_i = {name: q.tolist() for name, q in after.c_i.items()}


def test_scaffold_partial_trace_of_one_client_among_four() -> None:
    v = VECTORS["scaffold_partial_trace"]
    clients, algorithm = trace_of(v)
    clients |= {"client-2": rows([1, 0]), "client-3": rows([1, 0])}
    history: History = simulate(
        quadratic(initial=1.0), clients, algorithm, rounds=1, cohort=lambda _r, _m: ["client-0"]
    )
    assert history.c_i["client-0"][0] == pytest.approx(0.95, **CLOSE)
    assert history.c[0] == pytest.approx(0.2375, **CLOSE)  # not .95: N is 4, whoever took part
    assert history.model[0] == pytest.approx(1 - 0.19, **CLOSE)
    for absent in ("client-1", "client-2", "client-3"):
        assert history.c_i[absent].tolist() == [0]


def trace_of(v: dict[str, Any]) -> tuple[dict[str, Any], Scaffold]:
    clients = {
        f"client-{i}": rows([a, b]) for i, (a, b) in enumerate(zip(v["a"], v["b"], strict=True))
    }
    return clients, Scaffold(local_lr=v["lr"], batch_size=0, local_steps=v["K"])
