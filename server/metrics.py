"""How well scores tell positives from negatives, and how the worst-off clients fare.

Exact: equal scores form one threshold, so that the order of samples decides nothing.

>>> roc_auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
0.75
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kellet.sdk.errors import DataError

__all__ = ["Curves", "average_precision", "curves", "log_odds", "roc_auc", "worst_decile"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def average_precision(scores: ArrayLike, labels: ArrayLike) -> float:
    """The area under the precision-recall curve, as average precision.

    ``sum_t (R_t - R_{t-1}) P_t`` over the thresholds t, the distinct scores from the
    highest down; R and P are recall and precision of the samples that score at least t.
    No interpolation, which would flatter (Davis and Goadrich, ICML 2006). A score that
    says nothing gets the share of positives.

    scores: real [n], higher means positive. labels: [n], 0 or 1, both of them present.
    Raises ``DataError`` for others.
    """
    positives, seen = _curve(scores, labels)
    gained = np.diff(positives, prepend=0)
    return float(np.sum(gained * (positives / seen)) / positives[-1])


def roc_auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """The area under the ROC curve: that a positive scores above a negative, ties half.

    Arguments and errors are those of `average_precision`. The count behind it is of
    integers, so that the result is rounded once.
    """
    positives, seen = _curve(scores, labels)
    negatives = seen - positives
    new = np.diff(negatives, prepend=0)
    # Each negative is beaten by the positives above it, and draws with those beside it.
    twice = int(np.sum(new * (2 * positives - np.diff(positives, prepend=0))))
    return twice / (2 * int(positives[-1]) * int(negatives[-1]))


class Curves(NamedTuple):
    """The areas under the precision-recall and the ROC curve of a classifier."""

    pr_auc: float
    roc_auc: float


def curves(scores: ArrayLike, labels: ArrayLike) -> Curves | None:
    """Both areas of a classifier: of class 1 where there are two, else one class against the rest.

    With more than two classes each is the plain mean over the classes that occur in
    ``labels`` (macro). A sample is ranked for a class by `log_odds`, so that a class's
    scores can be compared from sample to sample. None where a curve does not exist: all
    labels are one class, or a score is not finite.

    scores: real [n, classes], before the softmax. labels: integers [n].
    """
    s, y = np.asarray(scores, np.float64), np.asarray(labels)
    if s.ndim != 2 or s.shape[1] < 2 or y.shape != s.shape[:1]:
        raise DataError(
            f"scores of the shape {s.shape} for labels of {y.shape}",
            why="there is one row a sample, and one column a class",
            repair="judge a classifier",
        )
    present = np.unique(y)
    if len(present) < 2 or not np.isfinite(s).all():
        return None
    judged = [1] if s.shape[1] == 2 else present.tolist()
    odds = {k: log_odds(s, k) for k in judged}
    return Curves(
        fmean(average_precision(odds[k], y == k) for k in judged),
        fmean(roc_auc(odds[k], y == k) for k in judged),
    )


def log_odds(scores: ArrayLike, of: int) -> F64:
    """log(p / (1 - p)) of the class ``of``, float64 [n], with p the softmax of scores [n, classes].

    It ranks as p does, and still does where p rounds to 1.
    """
    s = np.asarray(scores, np.float64)
    others = np.delete(s, of, axis=1)
    top = others.max(axis=1)
    odds: F64 = s[:, of] - top - np.log(np.exp(others - top[:, None]).sum(axis=1))
    return odds


def worst_decile(values: ArrayLike) -> float:
    """The mean over the worst tenth of the clients, by a value that is better if higher.

    The tenth is ceil(n/10) clients, one at least: four of 36. Li et al., "Fair Resource
    Allocation in Federated Learning", ICLR 2020, report it as "worst 10 %".

    values: real [n], one a client. Raises ``DataError`` where there are none, or one is
    not finite.
    """
    v = _finite("values", values)
    return float(np.sort(v)[: math.ceil(len(v) / 10)].mean())


def _curve(scores: ArrayLike, labels: ArrayLike) -> tuple[I64, I64]:
    """Positives and samples that score at least t, int64, for each distinct score downwards."""
    s, y = _finite("scores", scores), np.asarray(labels)
    if y.shape != s.shape or not np.isin(y, (0, 1)).all():
        raise DataError(
            f"labels have the shape {y.shape} for scores of {s.shape}",
            why="there is one label a score, and it is 0 or 1",
            repair="pass (y == the positive class)",
        )
    down = np.argsort(-s, kind="stable")
    positives = np.cumsum(y[down].astype(np.int64))
    if positives[-1] in (0, len(s)):
        raise DataError(
            f"all {len(s)} labels are {int(y[0])}",
            why="there is no curve without positives or without negatives",
            repair="judge on samples of both kinds",
        )
    last = np.append(np.flatnonzero(np.diff(s[down])), len(s) - 1)
    return positives[last], last + 1


def _finite(name: str, values: ArrayLike) -> F64:
    v = np.asarray(values, np.float64)
    if v.ndim != 1 or len(v) == 0 or not np.isfinite(v).all():
        raise DataError(
            f"{name} of the shape {v.shape}",
            why="they are finite numbers in one row, one at least",
            repair=f"look for NaN among the {name}",
        )
    return v
