"""Options that say whose data a simulation trains on, and how it is shared out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from kellet.sdk.commands.options import Whole
from kellet.sdk.errors import DataError, UsageError

if TYPE_CHECKING:
    from kellet.server.research import Source

__all__ = ["DataOptions"]

DEVICES = 8  # that share a task's people


@Parameter(name="*", group="Data")
@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Whose data, and how it is shared out."""

    data: str | None = None
    """MODULE:FUNCTION, called without arguments, returns a dict: client id -> (x, y)."""

    pool: str | None = None
    """MODULE:FUNCTION, called without arguments, returns the samples that --partition shares out:
    (x, y), or (x, y, owners) for a natural partition."""

    task: Literal["wisdm", "har"] | None = None
    """People's data that we know, with six of them, by the seed, as the test."""

    data_dir: Path | None = None
    """Where the task's files are (har)."""

    test: str | None = None
    """MODULE:FUNCTION, called without arguments, returns (x, y) to judge each model."""

    partition: str | None = None
    """How a pool, or a task's windows, become clients: dirichlet:ALPHA, similarity:PERCENT,
    by-label:LABELS, quantity:ALPHA, feature:ALPHA or natural, a client for each owner."""

    clients: Whole | None = None
    """Clients of a partition; 10, unless given."""

    least: Whole | None = None
    """Samples of each client at least, with dirichlet, quantity and feature; 10, unless given."""

    feature: Whole | None = None
    """The column that --partition feature goes by; the sum of a sample's values, unless given."""

    devices: Whole | None = None
    """Without a partition: devices that share a task's people; 8, unless given."""

    holdout: float = 0.0
    """The share of each client's samples that it is judged by and does not train on. Without
    --test and --task all of them together are the test."""

    def source(self) -> Source:
        """Whose data it is. Calls the user's functions. Raises ``UsageError``, ``DataError``."""
        given = [name for name in ("data", "pool", "task") if vars(self)[name] is not None]
        if len(given) != 1:
            both = "both are given" if len(given) == 2 else "all are given"
            raise UsageError(
                "it is not clear whose data to train on",
                why=both if given else "neither --data nor --task nor --pool is given",
                repair="give --data MODULE:FUNCTION, --pool MODULE:FUNCTION, or --task wisdm",
            )
        from kellet.sdk.commands.functions import call, find_function, xy
        from kellet.server.research import Given, People, Pool

        if self.task is not None:
            from kellet.sdk.tasks import task

            return People(task(self.task, self.data_dir), self._test())
        if self.devices is not None:
            raise UsageError(
                f"devices = {self.devices}",
                why=f"--{given[0]} is given, and devices share a --task's people",
                repair="leave it out" if self.data else "say --clients",
            )
        if self.data is not None:
            found = call(find_function(self.data, "--data"), self.data)
            if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
                raise DataError(
                    f"{self.data} returned a {type(found).__name__}",
                    why="a simulation needs each client's data under its id",
                    repair="return a dict: {'client-1': (x, y), ...}; samples to be shared out "
                    "are a --pool",
                )
            pairs = {name: xy(pair, f"{self.data}, client {name}") for name, pair in found.items()}
            return Given(pairs, self._test())
        assert self.pool is not None
        found = call(find_function(self.pool, "--pool"), self.pool)
        return Pool.of(found, self._test(), name=self.pool)

    def plan(self, named: str | None, source: Source) -> str:
        """The plan: the one that was named, or the task's own. Raises ``UsageError``."""
        from kellet.server.research import People

        if named is not None:
            return named
        if isinstance(source, People):
            return source.task.plan_name
        option = "--data" if self.data else "--pool"
        raise UsageError(
            "no plan is given", repair=f"kellet simulate PLAN {option} MODULE:FUNCTION"
        )

    def settings(self) -> dict[str, Any]:
        """What was given, or is to be taken, of how data is shared out: settings by name."""
        if self.partition is not None and self.devices is not None:
            raise UsageError(
                f"devices = {self.devices}",
                why="--partition makes clients, not devices with people",
                repair="say --clients",
            )
        names = ("partition", "clients", "least", "feature")
        given = {name: vars(self)[name] for name in names if vars(self)[name] is not None}
        if self.task is not None and self.partition is None:
            if self.clients is not None:
                raise UsageError(
                    f"clients = {self.clients}",
                    why="without --partition a task's people are shared among devices",
                    repair="say --devices, or give --partition",
                )
            given["clients"] = DEVICES if self.devices is None else self.devices
        return given

    def _test(self) -> Any:
        if self.test is None:
            return None
        from kellet.sdk.commands.functions import call, find_function, xy

        return xy(call(find_function(self.test, "--test"), self.test), self.test)
