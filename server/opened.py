"""An open round: its announcement, its cohort, and the sums of what was counted.

Where late updates are counted, earlier announcements may be named as well. An update is
held against the one that it names, by that one's control, codecs, schemes and algorithm;
what it adds to the model is weighed by the open round, and by how late it comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kellet.sdk.protocol.body import Body
from kellet.sdk.protocol.messages import Round, announcement_hash
from kellet.server import algorithms, held
from kellet.server.cohort import Cohort
from kellet.server.config import FleetConfig
from kellet.server.halves import Counted, half_of, vector_of, weight_of
from kellet.server.ledger import UpdateRow
from kellet.server.selection import Draw
from kellet.server.sums import ExactSum
from kellet.server.verify import Terms

__all__ = ["Named", "OpenRound"]

F32 = NDArray[np.float32]
MOST_WEIGHT = 2**31  # of an update in a sum
GRID_LIMIT = 2.0**14


@dataclass(frozen=True, slots=True)
class Named:
    """An announcement that updates may name, and how many rounds ago it was made."""

    message: Round
    base: bytes
    stale: int = 0


class OpenRound:
    """What a round needs while it is open: 16 bytes a parameter, whatever the cohort.

    ``earlier``: the announcements before it whose updates it counts. ``read`` gives the terms
    of an announcement, with the control decoded: the open one's are held, those of an
    earlier one are read when an update of it comes.
    """

    def __init__(
        self,
        message: Round,
        raw: bytes,
        *,
        earlier: Iterable[Named],
        read: Callable[[Named], Terms],
        config: FleetConfig,
        chosen: frozenset[str] | None,
    ) -> None:
        self.message = message
        self.raw = raw
        self.base = announcement_hash(raw)
        self.number = message.round
        self._named = {n.base: n for n in (*earlier, Named(message, self.base))}
        self._read = read
        self.terms = read(self._named[self.base])
        self.half = half_of(self.terms.algorithm)
        self.updates: list[Counted] = []
        self.total = ExactSum(self.terms.shapes.n_update)
        self.weight = 0
        draw = config.selection if isinstance(config.selection, Draw) else None
        self._window = draw.window if draw and chosen is None else 0.0
        self.cohort = Cohort(
            message.target,
            config.over_select,
            chosen,
            places=draw.size if draw else 0,
            gathering=self._window > 0,
        )
        self.samples: dict[str, int] = {}  # n_i of the devices that were counted
        self.draws = float("inf")  # when its devices are drawn, where they are
        self._opened = 0.0
        self.closes = float("inf")
        self._facts: list[dict[str, Any]] = []

    def published(self, now: float) -> None:
        """The deadline runs from the publication (after a restart, from the next one)."""
        if self.closes == float("inf"):
            self._opened = now
            self.closes = now + self.message.deadline
            self.draws = now + self._window if self._window else self.draws

    @property
    def wake(self) -> float:
        """When something is to be done about it."""
        return min(self.closes, self.draws) if self.cohort.gathering else self.closes

    def named(self, base: bytes) -> Named | None:
        """The announcement of this hash, if its updates are counted in this round."""
        return self._named.get(base)

    def named_round(self, number: int) -> Named | None:
        """The same by the number of its round."""
        return next((n for n in self._named.values() if n.message.round == number), None)

    def terms_of(self, base: bytes) -> Terms:
        """What an update that names this announcement is held against."""
        return self.terms if base == self.base else self._read(self._named[base])

    def weigh(self, update: Counted, stale: int = 0) -> int:
        """The integer weight of a delta_y in this round's mean; below 2^31, or it is refused."""
        return self._damped(weight_of(self.half, update), stale)

    def _damped(self, weight: int, stale: int = 0) -> int:
        """A weight in a round that counts late updates: less, the later they are."""
        return weight * algorithms.staleness_weight(stale) if self.message.buffering else weight

    def can_add(self, body: Body) -> bool:
        """Whether the sums can hold what the update adds to them."""
        assert body.delta_y is not None
        update = Counted.of(msgspec.to_builtins(body.header))
        if not 0 <= self.weigh(update) < MOST_WEIGHT:
            return False
        delta_y = body.delta_y[: self.terms.shapes.n_train]
        summed = self._summed(delta_y, update)
        # The update itself has been looked at already.
        return summed is delta_y or bool(np.all(np.abs(summed) < GRID_LIMIT))

    def add(self, row: UpdateRow, body: Body) -> None:
        """Add a counted update."""
        assert body.delta_y is not None
        update = Counted.of(row.header)
        self._sum(body.delta_y, update, row.weight)
        update = replace(update, weight=weight_of(self.half, update))
        # What it would weigh if it were not late: staleness damps, it does not shift weight.
        self.weight += self._damped(update.weight)
        self.updates.append(update)
        self.samples[row.device] = row.header["samples"]
        if row.header.get("stale"):
            self.cohort.count_late(row.device)
        else:
            self.cohort.count(row.device)
        self._facts.append(
            {
                name: row.header[name]
                for name in (
                    "loss",
                    "objective",
                    "drift",
                    "steps",
                    "scheme",
                    "delta_y",
                )
            }
            | {name: row.header[name] for name in held.HEADER if name in row.header}
            | {"stale": row.header.get("stale", 0)}
        )

    def _summed(self, trained: F32, update: Counted) -> NDArray[Any]:
        summed: NDArray[Any] = vector_of(self.half, "summed", len(trained), trained, update)
        return summed

    def _sum(self, delta_y: F32, update: Counted, weight: int) -> None:
        n_train = self.terms.shapes.n_train
        trained = delta_y[:n_train]
        summed = self._summed(trained, update)
        if summed is trained:
            self.total.add(delta_y, weight)
            return
        self.total.add(np.concatenate([summed, delta_y[n_train:]]), weight)

    def over(self) -> None:
        """The round has ended: let go of its sum, whoever still holds the round."""
        self.total = ExactSum(0)

    def summary(self, now: float) -> dict[str, Any]:
        """What there is to tell about the round. Losses are means over its devices."""

        def mean(name: str) -> float | None:
            return float(np.mean([f[name] for f in self._facts])) if self._facts else None

        facts = {
            "counted": [*self.cohort.counted, *self.cohort.late],
            "asked": list(self.cohort.asked),
            "missed": self.cohort.missed,
            "train_loss": mean("loss"),
            "objective": mean("objective"),
            "drift": mean("drift"),
            "drift_max": max((f["drift"] for f in self._facts), default=None),
            "schemes": dict(Counter(f["scheme"] for f in self._facts)),
            "codecs": dict(Counter(f["delta_y"] for f in self._facts)),
            "steps": sum(int(f["steps"]) for f in self._facts),
            **held.held_out(self._facts),
            "seconds": now - self._opened,
        }
        if self.message.buffering:
            facts |= {
                "late": len(self.cohort.late),
                "staleness": mean("stale"),
                "staleness_max": max((f["stale"] for f in self._facts), default=None),
            }
        return facts
