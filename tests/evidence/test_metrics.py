"""Metrics against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kellet.sdk.errors import DataError
from kellet.server.metrics import average_precision, roc_auc, worst_decile


def test_average_precision_by_hand():
    # Downwards: + - + -. Recall rises by a half at precision 1 and at precision 2/3.
    assert average_precision([0.9, 0.8, 0.7, 0.1], [1, 0, 1, 0]) == 0.5 + 0.5 * (2 / 3)
    # - + : all of the recall at precision 1/2.
    assert average_precision([0.2, 0.9], [1, 0]) == 0.5
    # One threshold for the two equal scores: (1 of 2), then (2 of 4).
    assert average_precision([5, 5, 1, 1], [1, 0, 0, 1]) == 0.5
    assert average_precision([3, 2, 1], [1, 1, 0]) == 1.0


def test_roc_auc_by_hand():
    # Of 2 x 2 pairs: (.9,.8) won, (.9,.1) won, (.7,.8) lost, (.7,.1) won.
    assert roc_auc([0.9, 0.8, 0.7, 0.1], [1, 0, 1, 0]) == 0.75
    # (5,5) drawn, (5,1) won, (1,5) lost, (1,1) drawn: 2 of 4.
    assert roc_auc([5, 5, 1, 1], [1, 0, 0, 1]) == 0.5
    # (2,2) drawn and (2,1) won: 1.5 of 2.
    assert roc_auc([2, 2, 1], [1, 0, 0]) == 0.75
    assert roc_auc([1, 2], [0, 1]) == 1.0
    assert roc_auc([1, 2], [1, 0]) == 0.0


def test_a_score_that_says_nothing():
    labels = [1, 0, 0, 0, 0, 1, 0, 0]
    assert average_precision([0.3] * 8, labels) == 0.25
    assert roc_auc([0.3] * 8, labels) == 0.5


def test_against_every_pair_and_every_threshold():
    """The definitions, written as loops, on scores with many ties."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        scores = rng.integers(0, 12, 40) / 4
        labels = rng.integers(0, 2, 40)
        positives, negatives = scores[labels == 1], scores[labels == 0]
        won = sum(1.0 * (p > n) + 0.5 * (p == n) for p in positives for n in negatives)
        assert roc_auc(scores, labels) == won / (len(positives) * len(negatives))
        area, recall = 0.0, 0.0
        for threshold in sorted(set(scores), reverse=True):
            taken = labels[scores >= threshold]
            area += (taken.sum() / len(positives) - recall) * taken.mean()
            recall = taken.sum() / len(positives)
        assert average_precision(scores, labels) == pytest.approx(area, abs=1e-14)


def test_the_order_of_samples_decides_nothing():
    rng = np.random.default_rng(1)
    scores, labels = rng.integers(0, 5, 100), rng.integers(0, 2, 100)
    order = rng.permutation(100)
    for metric in (average_precision, roc_auc):
        assert metric(scores, labels) == metric(scores[order], labels[order])
        assert metric(scores, labels == 1) == metric(scores, labels)


def test_worst_decile_by_hand():
    assert worst_decile([0.9]) == 0.9
    assert worst_decile([0.9, 0.5, 0.7, *[1.0] * 7]) == 0.5  # one of ten
    assert worst_decile([0.9, 0.5, 0.7, *[1.0] * 8]) == 0.6  # two of eleven
    assert worst_decile(np.arange(36) / 36) == 1.5 / 36  # four of 36


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        ([], []),
        ([0.1, 0.2], [0, 0]),
        ([0.1, 0.2], [1, 1]),
        ([0.1, 0.2], [0, 2]),
        ([0.1, 0.2], [0]),
        ([0.1, math.nan], [0, 1]),
        ([0.1, math.inf], [0, 1]),
        ([[0.1], [0.2]], [0, 1]),
    ],
)
def test_what_has_no_curve_is_refused(scores, labels):
    for metric in (average_precision, roc_auc):
        with pytest.raises(DataError):
            metric(scores, labels)


@pytest.mark.parametrize("values", [[], [math.nan], [[0.5]]])
def test_no_clients_no_decile(values):
    with pytest.raises(DataError):
        worst_decile(values)
