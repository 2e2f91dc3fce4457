"""Personal models in a simulation: the bits of plain NumPy, and what is told of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from algorithms.local import skewed
from personal.reference import ditto, fine_tuned
from support.toy_plans import quadratic, softmax_regression, stateful

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, FedDyn, FedNova, FedProx, PerFedAvg, Scaffold, ScaffoldM
from kellet.sdk.errors import DataError, UsageError
from kellet.sdk.holdout import split_holdout
from kellet.sdk.personal import Ditto, FineTune
from kellet.sdk.plan import Plan
from kellet.sdk.trainer import Data, batches
from kellet.server import FleetConfig, simulate
from kellet.server.metrics import worst_decile
from kellet.server.simulate import History

WISDM = Plan.open("wisdm")
PLAN = softmax_regression(4, 3)
CLIENTS = skewed({"a": 20, "b": 12, "c": 25})
LUCK = np.random.default_rng(5)
DATA = {
    name: (LUCK.standard_normal((16, 43)).astype(np.float32), LUCK.integers(0, 6, 16))
    for name in ("a", "b")
}
SETTINGS: dict[str, Any] = {"lr": 0.25, "batch": 8, "steps": 5, "seed": 3, "holdout": 0.25}


def run(algorithm: FedAvg, personal: Any, **options: Any) -> History:
    return simulate(
        PLAN,
        CLIENTS,
        algorithm,
        rounds=4,
        seed=3,
        personal=personal,
        holdout=0.25,
        keep_models=True,
        **options,
    )


def small_wisdm(method: Any, algorithm: FedAvg | None = None, **options: Any) -> History:
    return simulate(
        WISDM,
        DATA,
        algorithm or FedAvg(local_lr=0.1),
        rounds=2,
        personal=method,
        keep_models=True,
        **options,
    )


def received(history: History) -> list[np.ndarray]:
    return [PLAN.initial(), *history.models[:-1]]


EVERY = [
    FedAvg(local_lr=0.1, batch_size=8),
    FedProx(local_lr=0.1, batch_size=8, mu=0.5),
    Scaffold(local_lr=0.1, batch_size=8),
    ScaffoldM(local_lr=0.1, batch_size=8),
    FedDyn(local_lr=0.1, batch_size=8),
    FedNova(local_lr=0.1, batch_size=8),
    PerFedAvg(local_lr=0.1, batch_size=8),
]


@pytest.mark.parametrize("algorithm", EVERY, ids=lambda algorithm: algorithm.name)
def test_ditto_has_numpys_bits_beside_every_algorithm(algorithm: FedAvg) -> None:
    history = run(algorithm, Ditto(0.5, steps=5, local_lr=0.25))
    for device in CLIENTS:
        wanted = ditto(PLAN, received(history), CLIENTS[device], lam=0.5, device=device, **SETTINGS)
        assert np.array_equal(history.personal[device], wanted)


@pytest.mark.parametrize("algorithm", EVERY, ids=lambda algorithm: algorithm.name)
def test_the_fleets_model_has_the_same_bits_without(algorithm: FedAvg) -> None:
    history = run(algorithm, Ditto(0.5))
    without = run(algorithm, None)
    assert history.digest == without.digest
    assert history.rounds[-1].holdout_loss == without.rounds[-1].holdout_loss


def test_fine_tuning_begins_anew_from_what_came_last() -> None:
    history = run(EVERY[0], FineTune(steps=5, local_lr=0.25))
    for device in CLIENTS:
        wanted = fine_tuned(PLAN, received(history), CLIENTS[device], device=device, **SETTINGS)
        assert np.array_equal(history.personal[device], wanted)


def test_one_step_by_hand() -> None:
    """loss a/2 (w - b)^2 with a = 2, b = 1 from x = 0: v = 0 - .25*(2*(0 - 1) + .5*0) = .5; then

    x = .25 (the fleet's step at .125), and v = .5 - .25*(2*(.5 - 1) + .5*(.5 - .25)) = .71875.
    """
    history = simulate(
        quadratic(),
        {"a": (np.array([[2, 1]], np.float32), np.zeros(1))},
        FedAvg(local_lr=0.125, local_steps=1),
        rounds=2,
        personal=Ditto(0.5, steps=1, local_lr=0.25),
        keep_models=True,
    )
    assert history.rounds[0].holdout_loss is None
    assert history.clients == {}
    assert history.personal["a"].tolist() == [0.71875]


def test_without_a_leash_it_is_a_model_of_ones_own_data() -> None:
    history = run(EVERY[0], Ditto(0, steps=5, local_lr=0.25))
    wanted = ditto(PLAN, [PLAN.initial()] * 4, CLIENTS["b"], lam=0.0, device="b", **SETTINGS)
    assert np.array_equal(history.personal["b"], wanted)
    assert history.rounds[-1].personal_loss is not None


def test_rate_and_steps_are_the_algorithms_unless_said() -> None:
    algorithm = FedAvg(local_lr=0.25, batch_size=8, local_steps=9, weight_decay=0.5, clip=2.0)
    recipe = Ditto(0.5).recipe(algorithm)
    assert isinstance(recipe, FedProx)
    assert (recipe.mu, recipe.local_lr, recipe.weight_decay, recipe.clip) == (0.5, 0.25, 0.5, 2.0)
    assert (recipe.planned_steps(20), Ditto(epochs=2).recipe(algorithm).planned_steps(20)) == (3, 6)
    assert Ditto(steps=4, local_lr=0.5).recipe(algorithm).local_lr == 0.5


def test_a_round_tells_the_means_and_the_worst_tenth() -> None:
    history = run(EVERY[0], Ditto(0.5, steps=5, local_lr=0.25))
    last = history.rounds[-1]
    evaluator, losses, accuracies, own = PLAN.evaluator(), [], [], []
    samples = []
    for device, data in CLIENTS.items():
        held = split_holdout(Data(*PLAN.check_data(*data)), 0.25, device)[1]
        assert held is not None
        found = evaluator.evaluate(history.models[-2], held.x, held.y)
        mine = evaluator.evaluate(history.personal[device], held.x, held.y)
        losses.append(found.loss)
        accuracies.append(found.accuracy)
        own.append(mine.accuracy)
        samples.append(len(held))
        told = history.clients[device]
        final = evaluator.evaluate(history.model, held.x, held.y)
        assert (told.samples, told.global_loss) == (len(held), final.loss)
        assert (told.personal_loss, told.personal_accuracy) == (mine.loss, mine.accuracy)
    assert last.holdout_loss == pytest.approx(np.average(losses, weights=samples), rel=1e-12)
    assert last.holdout_accuracy_worst == worst_decile(accuracies)
    assert last.personal_accuracy == pytest.approx(np.average(own, weights=samples), rel=1e-12)
    assert last.personal_accuracy_worst == worst_decile(own)


def test_processes_come_to_the_same() -> None:
    here, there = (run(EVERY[0], Ditto(0.5), engine=engine) for engine in ("inline", "local"))
    assert here.clients == there.clients
    assert here.rounds[-1].personal_loss == there.rounds[-1].personal_loss
    for device in CLIENTS:
        assert np.array_equal(here.personal[device], there.personal[device])


def test_samples_beside_the_data_judge_as_well() -> None:
    told = run(EVERY[0], Ditto(0.5))
    split: dict[str, Any] = {
        name: split_holdout(Data(*PLAN.check_data(*data)), 0.25, name)
        for name, data in CLIENTS.items()
    }
    given = simulate(
        PLAN,
        {device: (data.x, data.y) for device, (data, _) in split.items()},
        EVERY[0],
        rounds=4,
        seed=3,
        personal=Ditto(0.5),
        holdout={
            device: (held.x, held.y) for device, (_, held) in split.items() if held is not None
        },
    )
    assert given.clients == told.clients


def test_only_who_takes_part_has_a_model() -> None:
    history = simulate(
        PLAN,
        CLIENTS,
        EVERY[0],
        rounds=2,
        personal="ditto:0.5",
        holdout=0.25,
        cohort=lambda _round, _ids: ["a", "b"],
    )
    assert history.clients["a"].personal_accuracy is not None
    assert history.clients["c"].personal_accuracy is None
    assert history.clients["c"].global_accuracy is not None


def test_some_tensors_alone() -> None:
    """The last layer moves; the others are those of the model that came."""
    history = small_wisdm(FineTune(steps=3, tensors=("4.*",)))
    plan, v, x = WISDM, history.personal["a"], history.models[-2]
    for tensor in plan.manifest.tensors:
        where = slice(tensor.offset, tensor.offset + tensor.size)
        assert np.array_equal(v[where], x[where]) == (not tensor.name.startswith("4."))


def test_a_clip_over_some_tensors_is_of_their_gradient() -> None:
    """One step of FedAvg's kernel on the two parts, after their gradient is cut to the clip."""
    algorithm = FedAvg(local_lr=0.1, batch_size=0, clip=0.125)
    method = FineTune(steps=1, tensors=("0.bias", "4.bias"))
    history = small_wisdm(method, algorithm)
    plan, v, x = WISDM, history.personal["a"], history.models[-2]
    spans = method.trained(plan.manifest.tensors)
    assert len(spans) == 2
    session = plan.session()
    session.params[:] = x
    order = next(batches(16, 16, seed=0, device="a/personal", round_=2))
    session.step(DATA["a"][0][order], DATA["a"][1][order])
    gradients = [session.grads[span] for span in spans]
    assert kernels.clip_norm(gradients, 0.125) > 0.125
    for span, gradient in zip(spans, gradients, strict=True):
        assert np.array_equal(v[span], x[span] - np.float32(0.1) * gradient)


def test_an_int8_client_trains_without() -> None:
    with pytest.raises(UsageError, match="no device could train in it"):
        FleetConfig(algorithm=FedAvg(), personal=Ditto(), schemes=("w8.row",))
    history = small_wisdm(Ditto(0.5), scheme={"a": "w8.row"})
    assert list(history.personal) == ["b"]


def test_statistics_and_frozen_tensors() -> None:
    """m is the device's own under v as well: 0, then 1/2 after x = 1; f stays. Two steps of

    w -= 1/4 (x - m) f from w = 1: 1 - 1/4 = 3/4, then with m = 1/2: 3/4 - 1/8 = 5/8.
    """
    history = simulate(
        stateful(),
        {"a": (np.ones((1, 1), np.float32), np.zeros(1))},
        FedAvg(local_lr=0.125, local_steps=1),
        rounds=1,
        personal=Ditto(0, steps=2, local_lr=0.25),
        keep_models=True,
    )
    assert history.personal["a"].tolist() == [0.625, 0.75]


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match=r"local_lr \* lam = 2"):
        simulate(PLAN, CLIENTS, FedAvg(local_lr=0.5), personal=Ditto(4))
    with pytest.raises(UsageError, match="trains no tensor 'head'"):
        simulate(PLAN, CLIENTS, FedAvg(), personal=FineTune(tensors=("head",)))
    with pytest.raises(DataError, match=r"client 'b'.*hold-out of 0\.01"):
        simulate(PLAN, {"b": CLIENTS["b"]}, FedAvg(), holdout=0.01)
