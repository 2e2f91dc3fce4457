"""Options that choose which devices a round asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from kellet.sdk.commands.options import Whole, called_by_options
from kellet.sdk.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from kellet.sdk.plan.manifest import Manifest
    from kellet.server.selection import Selection

__all__ = ["SelectionOptions"]


@Parameter(name="*", group="Selection")
@dataclass(frozen=True, kw_only=True)
class SelectionOptions:
    """Which devices a round asks; what is not given is the selection's default."""

    selection: Literal["first-come", "uniform", "weighted", "available", "similar"] | None = None
    """Who is asked: whoever is first; a draw, uniform or weighted by samples; who has waited
    longest; or devices whose data are unlike (docs/selection.md)."""

    window: float | None = None
    """Seconds after an announcement in which devices say that they are willing, before some of
    them are drawn; 0 draws among all that are enrolled, beforehand."""

    distance: Literal["hellinger", "jensen-shannon"] | None = None
    """similar: how unlike two histograms are."""

    neighbours: Whole | None = None
    """similar: how many nearest devices are near neighbours; 0 for as many kinds as places."""

    threshold: float | None = None
    """similar: instead, near neighbours are those at no more than this distance, below 1."""

    fairness: float | None = None
    """similar: the share of places for those who have waited longest; one of them at least."""

    feature_bins: Whole | None = None
    """similar: bins of each feature that are counted beside the labels, between the plan's bounds
    or, where it has none, at quantiles of the test set, which are announced."""

    def settings(self) -> dict[str, Any]:
        """What was given, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def make(
        self,
        size: int,
        *,
        seed: int,
        enough: int = 0,
        window: float = 0.0,
        manifest: Manifest,
        samples: ArrayLike | None = None,
    ) -> Selection:
        """The selection of ``size`` devices a round; first come, unless one is given.

        ``enough``: counted updates that close it. ``window``: unless that is given. ``samples``: x
        of a test set. Raises ``UsageError`` for an option that the selection does not have.
        """
        from kellet.server.selection import FirstCome, feature_bins, make

        given = self.settings()
        name = given.pop("selection", "first-come")
        with called_by_options(features="feature-bins"):
            if name == "first-come":
                if given:
                    first = next(iter(given))
                    raise UsageError(
                        f"{first} = {given[first]}",
                        why="whoever comes first is asked",
                        repair="add --selection uniform, weighted, available or similar",
                    )
                return FirstCome()
            bins = given.pop("feature_bins", 0)
            if bins:
                if name != "similar":
                    raise UsageError(f"feature_bins = {bins}", why=f"{name} looks at no data")
                given["features"] = feature_bins(manifest, bins, samples)
            settings = {"seed": seed, "enough": enough, "window": window} | given
            return make(name, size, **settings)
