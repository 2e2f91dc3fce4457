"""A device's machine where it may tell of its data: when to count, and what a hello says.

An aggregator that asks otherwise than before (other bins) gets the answer that noise was drawn
for, of which it may have no use: the owner can spend more privacy, the aggregator cannot.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec
from numpy.typing import ArrayLike

from kellet.sdk.errors import DataError
from kellet.sdk.histogram import count, data_digest, noised, to_shares
from kellet.sdk.protocol.effects import Report
from kellet.sdk.protocol.histograms import Histogram, Question
from kellet.sdk.releases import Releases, Sharing
from kellet.sdk.work import Describe, Described

__all__ = ["Telling", "describe"]


def describe(effect: Describe, x: ArrayLike, y: ArrayLike) -> Described:
    """Do what ``Describe`` asks, for these samples. Raises ``DataError``."""
    question = effect.question
    try:
        counts = count(x, y, question)
    except DataError:
        if not question.columns:
            raise
        question = question.labels  # the columns are not this plan's; the labels may be
        counts = count(x, y, question)
    return Described(question, data_digest(x, y), tuple(counts))


class Telling:
    """A machine's side of it. ``below(n)``: a whole number, uniform in [0, n), for the noise."""

    def __init__(
        self,
        releases: Releases,
        sharing: Sharing,
        below: Callable[[int], int] = secrets.randbelow,
    ) -> None:
        self._releases = releases
        self._sharing = sharing
        self._below = below
        self._answered: bytes | None = None  # the question for which this process has counted
        self._now = None if sharing.level == "none" else releases.last(sharing)
        self.counting = False

    @property
    def said(self) -> Histogram | msgspec.UnsetType | None:
        """What a hello says of it: a histogram, None to take back an earlier one, or nothing."""
        if self._now is None and not self._releases.any():
            return msgspec.UNSET
        return self._now

    def begin(self, question: Question | None) -> Describe | None:
        """What is to be counted before the device joins a round that asks this; None for nothing.

        It is ``counting`` until ``described``.
        """
        if question is None or self._sharing.level == "none" or self._answered == question.name:
            return None
        self._answered = question.name
        self.counting = True
        return Describe(self._sharing.part(question))

    def described(self, event: Described) -> tuple[bool, Report]:
        """Whether there is something else to say than before; and what there is to report."""
        self.counting = False
        before, sharing = self._now, self._sharing
        told = self._releases.of(event.samples, sharing)
        exact = sharing.epsilon is None
        fits = told is not None and told.question == event.question.name
        if told is None or (exact and not fits):
            counts, groups = list(event.counts), event.question.groups
            if sharing.epsilon is not None:
                counts = noised(counts, len(groups), sharing.epsilon, self._below)
            told = Histogram(
                question=event.question.name,
                shares=to_shares(counts, groups),
                epsilon=sharing.epsilon,
            )
            self._releases.add(event.samples, sharing, told)
            fits = True
        self._now = told
        noisy, spent = self._releases.spent()
        facts = {
            "shares": sharing.level,
            "epsilon": sharing.epsilon,
            "answers": fits,
            "new": told != before,
            "noisy_releases": noisy,
            "epsilon_spent": spent,
        }
        return told != before, Report("histogram", facts)
