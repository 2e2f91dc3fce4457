"""What a device may tell of its data: counts by label and by value, as shares, with noise or not.

Nothing here is called unless the device's owner shares it (``kellet.sdk.sharing``). What a
histogram reveals, and what noise changes about that, is in docs/selection.md.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kellet.sdk.errors import DataError
from kellet.sdk.protocol.histograms import Question

__all__ = ["EPSILON_STEP", "count", "data_digest", "discrete_laplace", "noised", "to_shares"]

Below = Callable[[int], int]  # a whole number, uniform in [0, n)
EPSILON_STEP = 2.0**-20  # noise is drawn for an epsilon that is a whole number of these


def count(x: ArrayLike, y: ArrayLike, question: Question) -> list[int]:
    """How many samples are in each bin, group after group. x: [n, *input], y: [n].

    Each sample is in one bin of each group. Raises ``DataError`` where labels are no classes of
    the question, or the input has not its columns.
    """
    labels, values = np.asarray(y), np.asarray(x)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != len(values):
        raise DataError(
            f"labels are {labels.dtype} {list(labels.shape)} for {len(values)} samples",
            why="a histogram counts one whole number a sample",
            repair="return y as int64 [n]",
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < question.classes:
        raise DataError(
            f"labels from {labels.min()} to {labels.max()}",
            why=f"the fleet trains {question.classes} classes, from 0",
            repair="return the classes of the plan",
        )
    groups = [np.bincount(labels.astype(np.int64), minlength=question.classes)]
    if question.columns:
        if values.ndim < 2 or max(question.columns) >= values.shape[1]:
            raise DataError(
                f"samples of the shape {list(values.shape[1:])}",
                why=f"the fleet asks for column {max(question.columns)}",
                repair="return x as the plan wants it",
            )
        for column, edges in zip(question.columns, question.edges, strict=True):
            of_column = values[:, column].reshape(len(values), -1).mean(axis=1, dtype=np.float64)
            bins = np.searchsorted(np.asarray(edges), of_column, side="right")
            groups.append(np.bincount(bins, minlength=len(edges) + 1))
    return [int(n) for n in np.concatenate(groups)]


def data_digest(x: ArrayLike, y: ArrayLike) -> bytes:
    """SHA-256 over shapes, types, bytes: the name of a set of samples. It stays on the device."""
    digest = hashlib.sha256()
    for array in (np.asarray(x), np.asarray(y)):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def noised(counts: Sequence[int], groups: int, epsilon: float, below: Below) -> list[int]:
    """``counts`` with noise, so that the whole is epsilon-differentially private.

    One sample more or less changes one count in each of the ``groups`` by one, so each count gets
    noise of its own, z with P(z) proportional to exp(-abs(z) * epsilon / groups). That is the
    geometric mechanism, Laplace's on whole numbers: Ghosh, Roughgarden and Sundararajan,
    arXiv 0811.2841. Drawn exactly, it has none of the gaps through which noise in floating
    point lets a count be seen (Mironov, CCS 2012). epsilon is rounded down to a whole number of
    ``EPSILON_STEP``, and must be one at least.
    """
    rate = Fraction(int(epsilon / EPSILON_STEP), int(1 / EPSILON_STEP)) / groups
    return [n + discrete_laplace(rate, below) for n in counts]


def discrete_laplace(rate: Fraction, below: Below) -> int:
    """A whole number z with P(z) proportional to exp(-abs(z) * rate), exactly.

    Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy",
    arXiv 2004.00010, algorithms 1 and 2.
    """
    s, t = rate.numerator, rate.denominator
    while True:
        u = below(t)
        if not _with_exp(Fraction(u, t), below):
            continue
        v = next(k for k in itertools.count() if not _with_exp(Fraction(1), below))
        size = (u + t * v) // s
        negative = below(2)
        if size or not negative:
            return -size if negative else size


def _with_exp(x: Fraction, below: Below) -> bool:
    """True with probability exp(-x), 0 <= x <= 1."""
    k = 1
    while below(x.denominator * k) < x.numerator:
        k += 1
    return k % 2 == 1


def to_shares(counts: Sequence[int], groups: Sequence[int]) -> bytes:
    """Each group as shares that sum to 1, float32, little-endian.

    Counts below 0, which noise makes, become 0; a group of which nothing is left tells nothing,
    and has equal shares.
    """
    out: list[NDArray[np.float64]] = []
    start = 0
    for bins in groups:
        group = np.maximum(np.array(counts[start : start + bins], np.float64), 0.0)
        total = group.sum()
        out.append(group / total if total else np.full(bins, 1.0 / bins))
        start += bins
    return np.concatenate(out).astype("<f4").tobytes()
