"""Options that make a sweep of a simulation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from kellet.sdk.commands.options import Folder, Whole
from kellet.sdk.errors import UsageError

__all__ = ["SweepOptions"]


@Parameter(name="*", group="Sweep")
@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Many runs, and where they are kept."""

    sweep: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None
    """NAME=VALUE,VALUE ... for each setting that takes several values: any option of the
    algorithm, the server optimizer, the partition (and its alpha, percent or labels), clients,
    cohort, scheme, uplink and so on; seeds=3 for seeds 0 to 2, or seeds=0,5,7."""

    out: Folder | None = None
    """Directory that keeps rounds.jsonl and runs.jsonl; the same command goes on from there."""

    parquet: bool = False
    """Write the same rows as Parquet too, into --out (extra research)."""

    processes: Whole = 1
    """Processes that work runs."""

    @property
    def asked(self) -> bool:
        """Whether this is a sweep, of one run at least."""
        return self.sweep is not None or self.out is not None

    def check(self) -> None:
        """Refuse now what would fail after the sweep. Raises ``UsageError``, ``ExtraMissing``."""
        if self.parquet:
            from kellet.server.research.parquet import check_installed

            check_installed()
            if self.out is None:
                raise UsageError(
                    "--parquet without --out",
                    why="it is not said where the files go",
                    repair="add --out DIR",
                )
        if not self.asked and self.processes != 1:
            raise UsageError(
                f"processes = {self.processes}",
                why="it is runs that are shared out among processes, and this is one",
                repair="add --sweep, or leave it out",
            )

    def axes(self, seed: int) -> tuple[dict[str, list[str]], list[int]]:
        """The values by setting, as they were written, and the seeds; ``seed`` if none are named.

        Raises ``UsageError`` for what is not NAME=VALUE,VALUE.
        """
        axes: dict[str, list[str]] = {}
        for word in self.sweep or ():
            found = re.fullmatch(r"([\w.-]+)=(.+)", word)
            values = [value.strip() for value in found[2].split(",")] if found else []
            if found is None or not all(values):
                raise UsageError(
                    f"--sweep {word}",
                    why="it must name a setting and its values",
                    repair="write --sweep alpha=0.1,1.0 algorithm=fedavg,scaffold seeds=3",
                )
            name = found[1].replace("-", "_")
            if name in axes or len(set(values)) < len(values):
                raise UsageError(
                    f"--sweep {word}",
                    why="the setting is there twice" if name in axes else "a value is there twice",
                    repair="name each once",
                )
            axes[name] = values
        return axes, self._seeds(axes, seed)

    def _seeds(self, axes: dict[str, list[str]], seed: int) -> list[int]:
        from kellet.server.research.settings import seeds_of

        named = [name for name in ("seed", "seeds") if name in axes]
        if not named:
            return [seed]
        if len(named) == 2:
            raise UsageError("--sweep seed and seeds", why="they are one", repair="leave one out")
        name = named[0]
        try:
            values = [int(value) for value in axes[name]]
        except ValueError:
            raise UsageError(
                f"--sweep {name}={','.join(axes[name])}",
                why="seeds are whole numbers",
                repair="write seeds=3, or seeds=0,5,7",
            ) from None
        del axes[name]
        return seeds_of(values) if name == "seeds" or len(values) > 1 else values
