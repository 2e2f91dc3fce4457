"""Metrics of a round against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.toy_plans import linear_loss, softmax_regression

from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.errors import DataError, UsageError
from kellet.server.metrics import curves, log_odds
from kellet.server.research import Gradients, Judge, Judged, Measures, Population, leash, run

IDENTITY = np.array([1, 0, 0, 1, 0, 0], np.float32)  # W, then b: the scores are x


def test_log_odds_by_hand():
    scores = [[math.log(2), math.log(3), math.log(5)]]  # p = 0.2, 0.3, 0.5
    for of, odds in enumerate((2 / 8, 3 / 7, 1.0)):
        assert log_odds(scores, of) == pytest.approx(math.log(odds), abs=1e-15)
    # p is 1 in float64 for both, and they still rank.
    assert np.diff(log_odds([[50.0, 0.0], [60.0, 0.0]], 0)) == 10


def test_two_classes_are_judged_by_the_second():
    odds = np.array([0.9, 0.8, 0.7, 0.1])
    found = curves(np.stack([-odds / 2, odds / 2], axis=1), [1, 0, 1, 0])
    assert found == (pytest.approx(0.5 + 0.5 * (2 / 3)), 0.75)


def test_more_classes_are_a_mean_of_one_against_the_rest():
    scores = [[2, 0, 0], [3, 0, 0], [0, 0, 3]]
    # Class 0: the second sample is above the first: precision 1/2 at all of the recall, one of
    # two pairs won. Class 1: below the first, level with the third: 1/3, and half of two pairs.
    # Class 2: alone on top.
    found = curves(scores, [0, 1, 2])
    assert found == (pytest.approx((1 / 2 + 1 / 3 + 1) / 3), pytest.approx((1 / 2 + 1 / 4 + 1) / 3))
    # A class that does not occur has no curve, and no part in the mean.
    absent = curves(np.column_stack([scores, [-9, -9, -9]]), [0, 1, 2])
    assert absent == found
    assert curves(scores, [1, 1, 1]) is None
    assert curves([[math.nan, 0.0], [0.0, 0.0]], [0, 1]) is None
    with pytest.raises(DataError, match="one column a class"):
        curves([0.1, 0.2], [0, 1])


def test_clients_and_the_test_by_hand():
    plan = softmax_regression(2, 2)
    right, wrong = [1.0, 0.0], [0.0, 1.0]
    clients = {"a": ([right, wrong], [0, 0]), "b": ([right], [0]), "c": ([right, right], [0, 0])}
    judge = Judge(plan, Population.of(plan, clients, test=([[2.0, 0.0], [0.0, 0.0]], [0, 1])))
    found = judge(IDENTITY)
    assert found.client_accuracy == pytest.approx((0.5 + 1 + 1) / 3)
    assert found.client_worst == 0.5  # the worst of three
    assert found.accuracy == 0.5  # equal scores are the first class
    assert found.loss == pytest.approx((math.log(1 + math.exp(-2)) + math.log(2)) / 2)
    assert (found.pr_auc, found.roc_auc) == (1, 1)
    without = Judge(plan, Population.of(plan, clients))(IDENTITY)
    assert without == Judged(client_accuracy=found.client_accuracy, client_worst=0.5)
    infinite = np.full(6, np.float32(3e38))
    assert (judge(infinite).loss, judge(infinite).pr_auc) == (None, None)


def test_what_is_held_out_is_judged_and_not_trained_on():
    plan = softmax_regression(2, 2)
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    people = Population.of(plan, {"a": (x, [0] * 10), "b": (x + 50, [1] * 10)}, holdout=0.3)
    for name in ("a", "b"):
        trained, judged = people.clients[name][0], people.judged[name][0]
        assert (len(trained), len(judged)) == (7, 3)
        both = np.concatenate([trained, judged])
        assert sorted(both.ravel().tolist()) == sorted((x + 50 * (name == "b")).ravel().tolist())
    assert people.test is not None
    assert people.test[1].tolist() == [0] * 3 + [1] * 3
    with pytest.raises(DataError, match=r"client .a.: a hold-out of 0\.3 of 2 samples"):
        Population.of(plan, {"a": (x[:2], [0, 0])}, holdout=0.3)


def test_the_largest_gradient_by_hand():
    """The gradient of this loss is the mean of x over the batch, wherever the model is."""
    plan = linear_loss(2)
    x = np.array([[3, 4], [0, 0], [6, 8]], np.float32)
    clients = {"a": (x, np.zeros(3, np.int64)), "b": (9 * x, np.zeros(3, np.int64))}
    at = np.array([2, 0], np.float32)

    def largest(counted="a", **settings):
        return Gradients(plan, clients, FedAvg(**settings)).largest(at, counted)

    assert largest(batch_size=1) == 10
    assert largest(batch_size=2) == 10  # (1.5, 2), then the short last one
    assert largest(batch_size=0) == pytest.approx(5)
    assert largest("ab", batch_size=1) == 90
    assert largest(batch_size=1, clip=0.5) == pytest.approx(0.5)
    # (6, 8) + 0.5 (2, 0)
    assert largest(batch_size=1, weight_decay=0.5) == pytest.approx(math.hypot(7, 8))


def test_the_bound_applies_where_its_argument_does():
    assert leash(FedProx(local_lr=0.5, mu=2), "f32") == 2
    assert leash(FedProx(local_lr=0.5, mu=2.5), "f32") is None
    assert leash(FedProx(local_lr=0.5, mu=50, implicit=True), "f32") == 50
    assert leash(FedProx(local_lr=0.5, mu=2), "w8.row") is None
    assert leash(FedProx(local_lr=0.1, mu=1, momentum=0.5), "f32") is None
    for other in (FedProx(mu=0), FedAvg(), Scaffold()):
        assert leash(other, "f32") is None


def test_drift_against_its_bound_by_hand():
    """Two explicit steps at lr mu = 1/2 along a constant gradient: 1 - (1/2)^2 of G / mu."""
    x = np.array([[3, 4]], np.float32)
    plan = linear_loss(2)
    people = Population.of(plan, {"a": (x, [0]), "b": (x / 5, [0])})
    for mu, implicit, share in ((1, False, 3 / 4), (4, True, 8 / 9)):
        algorithm = FedProx(local_lr=0.5, mu=mu, implicit=implicit, local_steps=2)
        _, measured = run(plan, people, algorithm, rounds=2)
        for round_ in measured:
            assert round_.gradient == 5
            assert round_.drift_bound == 5 / mu
            assert round_.record.drift_max == pytest.approx(share * 5 / mu, rel=1e-6)
            assert round_.record.drift == pytest.approx(share * 3 / mu, rel=1e-6)  # mean of 5 and 1
    _, measured = run(plan, people, FedAvg(), rounds=1)
    assert (measured[0].gradient, measured[0].drift_bound) == (None, None)


def test_rounds_between_judgements():
    plan = softmax_regression(2, 2)
    people = Population.of(plan, {"a": ([[1.0, 0.0]], [0])}, test=([[1.0, 0.0]], [0]))
    for every, expected in ((2, [2, 4, 5]), (0, [5]), (1, [1, 2, 3, 4, 5])):
        history, measured = run(
            plan, people, FedProx(), rounds=5, measures=Measures(judge_every=every)
        )
        for some in (
            [m.record.round for m in measured if m.judged.client_worst is not None],
            [m.record.round for m in measured if m.gradient is not None],
            [record.round for record in history.rounds if record.accuracy is not None],
        ):
            assert some == expected
    for settings in ({"judge_every": -1}, {"target": 0.0}, {"target": 1.5}):
        with pytest.raises(UsageError):
            Measures(**settings)
