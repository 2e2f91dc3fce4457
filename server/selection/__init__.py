"""Which devices a round asks (docs/selection.md). Selections are values; a user's own are too.

::

    FleetConfig(selection=Weighted(10, seed=1, window=2.0))
    simulate(plan, clients, cohort=Similar(6, seed=1))
"""

from __future__ import annotations

from typing import Any, Final

from kellet.sdk.errors import UsageError
from kellet.server.selection.features import FeatureBins, feature_bins
from kellet.server.selection.fleet import Candidate, Fleet, Selection, Told
from kellet.server.selection.similar import Similar
from kellet.server.selection.tallies import entropy
from kellet.server.selection.values import (
    Available,
    Draw,
    FirstCome,
    Schedule,
    Uniform,
    Weighted,
)

__all__ = [
    "SELECTIONS",
    "Available",
    "Candidate",
    "Draw",
    "FeatureBins",
    "FirstCome",
    "Fleet",
    "Schedule",
    "Selection",
    "Similar",
    "Told",
    "Uniform",
    "Weighted",
    "entropy",
    "feature_bins",
    "make",
]

SELECTIONS: Final[dict[str, type[Draw]]] = {
    "uniform": Uniform,
    "weighted": Weighted,
    "available": Available,
    "similar": Similar,
}


def make(name: str, size: int, **settings: Any) -> Selection:
    """A selection by its name. Raises ``UsageError`` for one, or a setting, that is unknown."""
    kind = SELECTIONS.get(name)
    if kind is None:
        raise UsageError(f"selection = {name!r}", repair=f"choose one of {', '.join(SELECTIONS)}")
    unknown = sorted(settings.keys() - kind.__dataclass_fields__.keys())
    if unknown:
        raise UsageError(
            f"{unknown[0]} = {settings[unknown[0]]!r}", why=f"selection {name} has no such setting"
        )
    return kind(size, **settings)
