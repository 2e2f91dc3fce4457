"""An aggregator's choice of devices: a selection, and what the ledger knows for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kellet.sdk.plan import Manifest
from kellet.sdk.protocol.histograms import Histogram, Question
from kellet.server.ledger import Ledger
from kellet.server.roster import Roster
from kellet.server.selection.features import read_histogram
from kellet.server.selection.fleet import Candidate, Fleet, Selection, Told
from kellet.server.selection.tallies import Tallies
from kellet.server.selection.values import Draw

__all__ = ["Chooser", "question_of"]


def question_of(selection: Selection, manifest: Manifest) -> Question | None:
    """What a selection wants to know of devices' data; most, and a user's own perhaps, nothing.

    Raises ``UsageError`` where the plan has nothing of the kind.
    """
    ask: Callable[[Manifest], Question | None] | None = getattr(selection, "question", None)
    return ask(manifest) if ask else None


class Chooser:
    """Chooses, and keeps count. Another process over the same ledger chooses the same.

    ``question``: what devices were asked of their data; answers to another tell nothing.
    """

    def __init__(
        self, selection: Selection, question: Question | None, ledger: Ledger, roster: Roster
    ) -> None:
        self._selection = selection
        self._question = question
        self._ledger = ledger
        self._roster = roster
        self._samples: dict[str, int] | None = None  # read when it is first asked for
        self._told: dict[str, tuple[Histogram, Told | None]] = {}
        self._tallies = Tallies()
        for number, summary in ledger.summaries():
            self._tallies.note(number, summary)

    def choose(self, round_: int) -> frozenset[str] | None:
        """The devices of a round; None leaves it to who comes."""
        return self._selection.choose(round_, self._fleet())

    def draw(self, round_: int, waiting: Iterable[str], places: int) -> list[str]:
        """Some of those that are willing, for a selection that waits for them."""
        assert isinstance(self._selection, Draw)
        return self._selection.pick(round_, self._fleet().among(waiting), places)

    def ended(self, round_: int, summary: Mapping[str, Any], samples: Mapping[str, int]) -> None:
        """A round ended. ``samples``: n_i of the devices whose updates it counted."""
        self._tallies.note(round_, summary)
        if self._samples is not None:
            self._samples.update(samples)

    def fairness(self) -> dict[str, float | None]:
        """How evenly the enrolled devices were asked and counted, over all rounds."""
        return self._tallies.fairness(self._roster.enrolled)

    def _fleet(self) -> Fleet:
        return Fleet(self._roster.active(), self._look)

    def _look(self, device: str) -> Candidate:
        if self._samples is None:
            self._samples = self._ledger.samples()
        tallies = self._tallies
        return Candidate(
            device=device,
            samples=self._samples.get(device),
            turn=tallies.turn.get(device, 0),
            asked=tallies.asked[device],
            counted=tallies.counted[device],
            told=self._read(device),
        )

    def _read(self, device: str) -> Told | None:
        """What a device told, read once."""
        member = self._roster.member(device)
        histogram = member.histogram if member else None
        if histogram is None or self._question is None:
            return None
        known = self._told.get(device)
        if known is None or known[0] is not histogram:
            known = self._told[device] = (histogram, read_histogram(histogram, self._question))
        return known[1]
