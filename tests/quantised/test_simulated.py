"""Whole rounds with int8 weights, coded vectors and mixed fleets, in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from algorithms.local import skewed
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.errors import UsageError
from kellet.sdk.plan import Plan
from kellet.sdk.variants import add_variants
from kellet.server import History, simulate

FEATURES = 128  # two blocks of 64 for each class
CLIENTS = {
    name: (np.tile(x / np.sqrt(FEATURES / 4), FEATURES // 4), y)
    for name, (x, y) in skewed({"a": 40, "b": 60, "c": 25, "d": 35}).items()
}
COMMON: dict[str, Any] = {"local_lr": 0.1, "batch_size": 16, "local_epochs": 2}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return add_variants(softmax_regression(FEATURES, 3))


def run(plan: Plan, algorithm: FedAvg, **options: Any) -> History:
    return simulate(plan, CLIENTS, algorithm, **{"rounds": 6, "cohort": 3} | options)


@pytest.mark.parametrize("scheme", ["w8.row", "w8.block64"])
@pytest.mark.parametrize("uplink", ["f32", "q8"])
def test_the_invariant_holds_with_int8_weights_derived_and_damped(
    plan: Plan, scheme: str, uplink: Any
) -> None:
    algorithm = Scaffold(control_damping=0.125, **COMMON)
    history = run(plan, algorithm, scheme=scheme, uplink=uplink, check="event")
    assert history.control_gap == 0
    assert (history.updates_counted, history.updates_refused) == (18, 0)
    assert any(np.any(c_i) for c_i in history.c_i.values())
    assert history.rounds[-1].schemes == {f"{scheme}/1": 3}
    assert history.rounds[-1].codecs == {uplink: 3}
    again = run(plan, algorithm, scheme=scheme, uplink=uplink)
    assert again.digest == history.digest


@pytest.mark.parametrize(
    "algorithm",
    [FedAvg(**COMMON), FedProx(mu=0.1, **COMMON), Scaffold(control_damping=0.25, **COMMON)],
    ids=lambda algorithm: algorithm.name,
)
def test_int8_follows_float32(plan: Plan, algorithm: FedAvg) -> None:
    x = np.concatenate([pair[0] for pair in CLIENTS.values()])
    y = np.concatenate([pair[1] for pair in CLIENTS.values()])
    whole, eighth = (
        run(plan, algorithm, rounds=12, cohort=None, scheme=scheme, test=(x, y))
        for scheme in ("f32", "w8.row")
    )
    assert whole.loss is not None
    assert eighth.loss is not None
    assert eighth.loss == pytest.approx(whole.loss, rel=0.05)
    assert eighth.digest != whole.digest


def test_a_mixed_fleet(plan: Plan) -> None:
    history = run(
        plan,
        Scaffold(control_damping=0.5, **COMMON),
        cohort=None,
        scheme={"a": "w8.row", "b": "w8.block64", "c": "f32/1"},  # and d by default
        uplink={"a": "q8", "c": "q8"},
        downlink="q8",
        check="event",
    )
    assert history.control_gap == 0
    assert history.updates_counted == 24
    assert history.rounds[-1].schemes == {"f32/1": 2, "w8.row/1": 1, "w8.block64/1": 1}
    assert history.rounds[-1].codecs == {"f32": 2, "q8": 2}


def test_a_mixed_fleet_gives_each_client_what_a_pure_one_does(plan: Plan) -> None:
    """One round from the same model: the mean of both kinds' updates, each as it was."""
    algorithm = FedAvg(weighting="uniform", **COMMON)
    start = plan.initial().astype(np.float64)

    def moved(scheme: Any, asked: str) -> Any:
        return run(plan, algorithm, rounds=1, scheme=scheme, cohort=lambda _r, _m: asked).model

    mixed = moved({"a": "w8.row", "b": "f32"}, "ab")
    apart = [moved("w8.row", "a") - start, moved("f32", "b") - start]
    assert mixed == pytest.approx(start + np.mean(apart, axis=0), abs=1e-7)


def test_an_int8_shift_beside_float32_weights(plan: Plan) -> None:
    exact, rows = (
        run(plan, Scaffold(**COMMON), shift=shift, check="event") for shift in ("f32", "int8")
    )
    assert exact.control_gap == rows.control_gap == 0
    assert exact.digest != rows.digest
    assert rows.model == pytest.approx(exact.model, abs=1e-3)


def test_feedback_keeps_a_residual_per_client(plan: Plan) -> None:
    algorithm = Scaffold(delta_c="f32", **COMMON)
    options: dict[str, Any] = {"uplink": "topk", "share": 0.2, "check": "event"}
    without, with_it = (
        run(plan, algorithm, rounds=10, feedback=feedback, **options) for feedback in (False, True)
    )
    assert with_it.control_gap == 0
    assert with_it.digest != without.digest


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": "w4"}, "there is no scheme 'w4'"),
        ({"scheme": {"e": "f32"}}, "scheme of unknown clients: e"),
        ({"uplink": "zip"}, "uplink = 'zip'"),
        ({"uplink": {"e": "q8"}}, "uplink of unknown clients: e"),
        ({"shift": "f16"}, "shift = 'f16'"),
        ({"downlink": "topk"}, "downlink"),
    ],
)
def test_what_cannot_be_simulated(plan: Plan, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(plan, FedAvg(), **options)
