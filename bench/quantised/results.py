"""What a run leaves behind: one JSON file, kept as it grows and checked whenever it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from bench.quantised.accuracy import Finished
from bench.quantised.device import Device
from bench.quantised.grid import Setting
from bench.results import going_on, machine, replace_file, today, versions

__all__ = ["Results", "begun", "difference", "mean", "read", "write"]

FORMAT = 1


class Results(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A run, whole or not. ``full``: of all seeds, and with devices."""

    format: int = FORMAT
    full: bool
    date: str
    machine: dict[str, str | int]
    versions: dict[str, str]
    settings: dict[str, Setting]
    finished: list[Finished]
    devices: list[Device]

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} is not {FORMAT}")

    @property
    def command(self) -> str:
        return "python -m bench.quantised" + (" --full" if self.full else "")

    def of(self, task: str, algorithm: str, scheme: str) -> list[Finished]:
        """Return a table's cell: one run a seed, in the order of the seeds."""
        wanted = (task, algorithm, scheme)
        found = [
            f for f in self.finished if (f.cell.task, f.cell.algorithm, f.cell.scheme) == wanted
        ]
        return sorted(found, key=lambda f: f.cell.seed)

    def tasks(self) -> list[str]:
        """Return the tasks that have cells, in the order of the settings."""
        return [t for t in self.settings if any(f.cell.task == t for f in self.finished)]

    def device(self, plan: str, scheme: str) -> Device | None:
        """Return what was measured of a plan under a scheme."""
        return next((d for d in self.devices if (d.plan, d.scheme) == (plan, scheme)), None)


def begun(path: Path | None, *, full: bool, settings: Mapping[str, Setting]) -> Results:
    """Return the results kept in ``path``, to go on from, or none yet.

    Raises ``UsageError`` for a file of something else.
    """
    new = Results(
        full=full,
        date=today(),
        machine=machine(),
        versions=versions(),
        settings=dict(settings),
        finished=[],
        devices=[],
    )
    old = going_on(path, Results, new.command)
    if old is not None:
        new.finished, new.devices = old.finished, old.devices
    return new


def mean(runs: Iterable[Finished]) -> float:
    """Return the mean accuracy over the seeds whose run did not diverge; 0 where all did."""
    held = [run.accuracy for run in runs if not run.diverged]
    return fmean(held) if held else 0.0


def difference(runs: Sequence[Finished], others: Sequence[Finished]) -> list[float]:
    """Return by how many points each seed's run is above the other's of the same seed.

    A seed of which either run diverged has no difference.
    """
    of = {run.cell.seed: run.accuracy for run in others if not run.diverged}
    held = [run for run in runs if not run.diverged and run.cell.seed in of]
    return [100 * (run.accuracy - of[run.cell.seed]) for run in held]


def read(path: Path) -> Results:
    """Read a file of results; msgspec.ValidationError says where it is not one."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write(results: Results, path: Path) -> None:
    """Write results, a cell a line, in one move: an interrupt leaves the old file or the new."""
    replace_file(
        results, path, ('{"cell"', '{"plan"', '"settings"', '"machine"', '"finished"', '"devices"')
    )
