"""Selection by how alike the devices' data are, in the manner of FedDSS.

T. M. Nguyen, K. L. Poh, S.-L. Chong and J. H. Lee, "FedDSS: A data-similarity approach for client
selection in horizontal federated learning", International Journal of Medical Informatics, 2024,
doi 10.1016/j.ijmedinf.2024.105650. Theirs are the parts: a statistical measure of how alike two
clients' data are, a network of each client's N most similar neighbours, a selection on that
network, and entropy to tell how fair it is. What each part is here, docs/selection.md says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from kellet.sdk.errors import UsageError, require
from kellet.sdk.plan import Manifest
from kellet.sdk.protocol.histograms import Question
from kellet.server.selection.distances import DISTANCES, Neighbours
from kellet.server.selection.features import FeatureBins, question_about
from kellet.server.selection.fleet import Candidate, Fleet, Told
from kellet.server.selection.values import Draw, by_turn, lot

__all__ = ["Similar"]


@dataclass(frozen=True)
class Similar(Draw):
    """Devices whose data are unlike each other's; who told nothing is unlike any.

    A round's places go, in this order, to

    1. whoever has waited longest since its last turn: a ``fairness`` share of the places, at
       least one. Of N devices none waits for more than ceil(N / that many) rounds;
    2. the others as their lots are, leaving out near neighbours of those that are in already;
    3. where only near neighbours are left, these, in the same way, as if nobody were in yet.

    ``neighbours``: k; two devices are near neighbours where each is among the other's k nearest.
    0 for N / size - 1 among N that told: as many kinds as there are places.
    ``threshold``: instead, they are where their distance is no more than this; 0 for k.
    ``distance``: hellinger or jensen-shannon, in [0, 1]. ``features``: what is to be counted
    beside the labels, by devices that share it.
    """

    distance: Literal["hellinger", "jensen-shannon"] = "hellinger"
    neighbours: int = 0
    threshold: float = 0.0
    fairness: float = 0.25
    features: FeatureBins | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        known = " or ".join(DISTANCES)
        require(self.distance in DISTANCES, "distance", self.distance, known)
        require(self.neighbours >= 0, "neighbours", self.neighbours, "at least 0")
        require(0 <= self.threshold < 1, "threshold", self.threshold, "at least 0 and below 1")
        require(0 <= self.fairness <= 1, "fairness", self.fairness, "0 to 1")
        if self.neighbours and self.threshold:
            raise UsageError(
                f"neighbours = {self.neighbours} and threshold = {self.threshold:g}",
                why="either makes the graph",
                repair="give one of them",
            )

    def question(self, manifest: Manifest) -> Question:
        """Raises ``UsageError`` for a plan whose labels are no classes, and for too many bins."""
        return question_about(manifest, self.features)

    def turns(self, places: int) -> int:
        """How many of so many places go to those who have waited longest."""
        return min(places, max(1, math.floor(self.fairness * places + 1e-9)))

    def pick(self, round_: int, fleet: Fleet, places: int) -> list[str]:
        candidates = fleet.candidates()
        lots = {c.device: lot(self.seed, round_, c.device) for c in candidates}
        first = by_turn(candidates, self.seed, round_)[: self.turns(places)]
        taken = dict.fromkeys(c.device for c in first)
        unlike = _Unlike(self, candidates)
        for device in taken:
            unlike.take(device)
        waiting = sorted(lots.keys() - taken.keys(), key=lots.__getitem__)
        while waiting and len(taken) < places:
            for device in waiting:
                if len(taken) < places and unlike.may_take(device):
                    unlike.take(device)
                    taken[device] = None
            waiting = [device for device in waiting if device not in taken]
            unlike.forget()
        return list(taken)


class _Unlike:
    """Who is no near neighbour of anybody that is taken."""

    def __init__(self, selection: Similar, candidates: Sequence[Candidate]) -> None:
        who = {c.device: c.told for c in candidates if c.told is not None}
        self._place = {device: i for i, device in enumerate(who)}
        k = selection.neighbours or max(0, math.ceil(len(who) / selection.size) - 1)
        self._graph = _graph(tuple(who.values()), selection.distance, k, selection.threshold)
        self._near = np.zeros(len(who), bool)

    def may_take(self, device: str) -> bool:
        place = self._place.get(device)
        return place is None or not self._near[place]

    def take(self, device: str) -> None:
        place = self._place.get(device)
        if place is not None:
            self._near |= self._graph.near(place)

    def forget(self) -> None:
        self._near[:] = False


@lru_cache(maxsize=2)
def _graph(told: tuple[Told, ...], kind: str, k: int, threshold: float) -> Neighbours:
    """Histograms hardly ever change from a round to the next."""
    return Neighbours(told, kind, k=k, threshold=threshold)
