"""What devices are asked to count of their data, and how their answers are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from kellet.sdk.errors import DataError, UsageError
from kellet.sdk.plan import Manifest
from kellet.sdk.protocol.histograms import Histogram, Question
from kellet.sdk.protocol.limits import MAX_BINS
from kellet.server.selection.fleet import Told

__all__ = ["FeatureBins", "feature_bins", "question_about", "read_histogram"]


@dataclass(frozen=True)
class FeatureBins:
    """Columns of the input, and the inner edges of each one's bins, ascending.

    A column is a place on the first axis of an example; a sample's value there is the mean over
    the other axes. ``len(edges[j]) + 1`` bins: below the first edge, from one to the next, from
    the last on.
    """

    columns: tuple[int, ...]
    edges: tuple[tuple[float, ...], ...]

    @classmethod
    def fixed(cls, manifest: Manifest, bins: int, columns: Sequence[int] | None = None) -> Self:
        """Bins of equal width between the plan's bounds of the input (all columns, unless given).

        Raises ``UsageError`` for a plan that has none.
        """
        low, high = manifest.input.low, manifest.input.high
        if low is None or high is None or not low < high:
            raise UsageError(
                f"bins of equal width, with the plan {manifest.name!r}",
                why="it does not say within which bounds its input lies",
                repair="take quantiles of samples that are no device's (FeatureBins.quantiles)",
            )
        chosen = _columns(manifest.input.shape, columns)
        edges = tuple(low + (high - low) * b / bins for b in range(1, _bins(bins)))
        return cls(chosen, (edges,) * len(chosen))

    @classmethod
    def quantiles(cls, x: ArrayLike, bins: int, columns: Sequence[int] | None = None) -> Self:
        """Edges at the quantiles of ``x`` [n, *input], so that each bin has a like share of it.

        These samples are announced by their quantiles: they must not be anybody's secret, a test
        set at the aggregator for instance. A column in which quantiles coincide has fewer bins.
        """
        values = np.asarray(x, np.float64)
        if values.ndim < 2 or not len(values) or not np.isfinite(values).all():
            raise DataError(
                f"quantiles of samples of the shape {values.shape}",
                why="it takes finite samples of one axis at least",
                repair="give x as the plan's input wants it",
            )
        chosen = _columns(values.shape[1:], columns)
        at = np.arange(1, _bins(bins)) / bins
        of_column = values.reshape(len(values), values.shape[1], -1).mean(axis=2)
        edges = (np.unique(np.quantile(of_column[:, c], at)).tolist() for c in chosen)
        return cls(chosen, tuple(map(tuple, edges)))


def feature_bins(
    manifest: Manifest,
    bins: int,
    samples: ArrayLike | None = None,
    columns: Sequence[int] | None = None,
) -> FeatureBins:
    """``bins`` a column: of equal width where the plan bounds its input, else by ``samples``.

    Raises ``UsageError`` where there is neither.
    """
    spec = manifest.input
    if spec.low is not None and spec.high is not None:
        return FeatureBins.fixed(manifest, bins, columns)
    if samples is None:
        raise UsageError(
            f"feature_bins = {bins}",
            why="the plan does not bound its input, and there is no test set to take quantiles of",
            repair="give a test set, or leave feature_bins out",
        )
    return FeatureBins.quantiles(samples, bins, columns)


def _bins(bins: int) -> int:
    if not 2 <= bins <= MAX_BINS:
        raise UsageError(f"bins = {bins}", why=f"it must be 2 to {MAX_BINS}")
    return bins


def _columns(shape: Sequence[int], columns: Sequence[int] | None) -> tuple[int, ...]:
    count = shape[0] if shape else 0
    chosen = tuple(range(count)) if columns is None else tuple(columns)
    if not chosen or not all(0 <= c < count for c in chosen) or len(set(chosen)) < len(chosen):
        raise UsageError(
            f"columns = {list(chosen)}",
            why=f"the input has 0 to {count - 1}, each named once",
        )
    return chosen


def question_about(manifest: Manifest, features: FeatureBins | None = None) -> Question:
    """What is to be counted of samples for this plan: the labels, and the columns of ``features``.

    Raises ``UsageError`` for a plan whose labels are no classes, and for too many bins.
    """
    labels = manifest.labels
    if labels.classes is None or labels.shape or labels.classes > MAX_BINS:
        raise UsageError(
            f"selection by similar data, with the plan {manifest.name!r}",
            why=f"its labels are not one of at most {MAX_BINS} classes a sample",
            repair="choose another selection",
        )
    try:
        if features is None:
            return Question(classes=labels.classes)
        _columns(manifest.input.shape, features.columns)
        return Question(classes=labels.classes, columns=features.columns, edges=features.edges)
    except ValueError as error:
        raise UsageError(
            "the bins cannot be asked for", why=str(error), repair="use fewer columns or bins"
        ) from None


def read_histogram(histogram: Histogram | None, question: Question | None) -> Told | None:
    """An answer, if it is one to this question, in full or for the labels alone."""
    if histogram is None or question is None:
        return None
    for part in (question, question.labels):
        if histogram.question == part.name and len(histogram.shares) == 4 * part.bins:
            shares = np.frombuffer(histogram.shares, "<f4")
            sums = np.add.reduceat(shares, np.cumsum((0, *part.groups[:-1])))
            if np.allclose(sums, 1.0, atol=1e-3):
                return Told(histogram.shares, part.groups)
    return None
