"""What a device's owner lets it tell of its data, and what it has told, in its database.

A histogram with noise is drawn once for a set of samples and the owner's settings, and sent again
whenever it is asked for. Were it drawn again, the mean of the answers would come out from under
the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kellet.sdk.durable import Database
from kellet.sdk.errors import require
from kellet.sdk.histogram import EPSILON_STEP
from kellet.sdk.protocol.histograms import Histogram, Question

__all__ = ["RELEASES_SCHEMA", "Level", "Releases", "Sharing"]

Level = Literal["none", "labels", "labels+features"]
_MOST_EPSILON = 1000.0

RELEASES_SCHEMA = """
create table if not exists releases (
    id integer primary key,
    samples blob not null,
    level text not null,
    epsilon real,
    question blob not null,
    shares blob not null
)"""


@dataclass(frozen=True)
class Sharing:
    """What the device's owner allows. ``level``: what is counted; nothing, unless they say so.

    ``epsilon``: of the noise that is added on the device (see ``kellet.sdk.histogram.noised``),
    None for none.
    """

    level: Level = "none"
    epsilon: float | None = None

    def __post_init__(self) -> None:
        levels = ("none", "labels", "labels+features")
        require(self.level in levels, "share_histogram", self.level, " or ".join(levels))
        require(
            self.epsilon is None or EPSILON_STEP <= self.epsilon <= _MOST_EPSILON,
            "histogram_epsilon",
            self.epsilon,
            f"above 0 and at most {_MOST_EPSILON:.0f}",
        )

    def part(self, question: Question) -> Question:
        """What of a question is answered."""
        return question if self.level == "labels+features" else question.labels


class Releases:
    """What was told, in the device's database, in the order of telling.

    They outlive enrolling anew: to whom a histogram was told cannot be known to have forgotten it.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    def of(self, samples: bytes, sharing: Sharing) -> Histogram | None:
        """What was told of these samples under these settings."""
        return self._last("samples = ? and level = ? and epsilon is ?", samples, sharing)

    def last(self, sharing: Sharing) -> Histogram | None:
        """What was told last under these settings, of whatever samples."""
        return self._last("level = ? and epsilon is ?", None, sharing)

    def _last(self, where: str, samples: bytes | None, sharing: Sharing) -> Histogram | None:
        values = [*([] if samples is None else [samples]), sharing.level, sharing.epsilon]
        row = self._db.one(
            f"select question, shares, epsilon from releases where {where}"
            " order by id desc limit 1",
            *values,
        )
        return None if row is None else Histogram(question=row[0], shares=row[1], epsilon=row[2])

    def add(self, samples: bytes, sharing: Sharing, histogram: Histogram) -> None:
        """On the disk before it is said."""
        with self._db.transaction():
            if sharing.epsilon is None:  # it can be counted again: the last one is enough
                self._db.run("delete from releases where epsilon is null")
            self._db.run(
                "insert into releases (samples, level, epsilon, question, shares)"
                " values (?, ?, ?, ?, ?)",
                samples,
                sharing.level,
                sharing.epsilon,
                histogram.question,
                histogram.shares,
            )

    def spent(self) -> tuple[int, float]:
        """How many were told with noise, and the sum of their epsilons.

        That sum bounds what all of them together tell, if their samples have any in common.
        """
        row = self._db.one(
            "select count(*), coalesce(sum(epsilon), 0.0) from releases where epsilon is not null"
        )
        assert row is not None
        return row[0], row[1]

    def any(self) -> bool:
        """Whether anything was ever told."""
        return self._db.one("select 1 from releases limit 1") is not None
