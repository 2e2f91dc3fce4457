"""The JSON file of an experiment: what is finished, kept as it grows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bench.results import going_on, machine, replace_file, today, versions

__all__ = ["Finished", "Kept", "begun", "read", "write"]

FORMAT = 1


class Finished(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cell's settings, and what came of it. ``mark`` stands for the settings and the plan."""

    mark: str
    cell: dict[str, Any]
    found: dict[str, Any]
    seconds: float


class Kept(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A run, whole or not. Date, machine and versions are of the last cells."""

    format: int = FORMAT
    name: str
    full: bool
    date: str
    machine: dict[str, str | int]
    versions: dict[str, str]
    finished: list[Finished]

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} is not {FORMAT}")

    @property
    def command(self) -> str:
        return f"python -m bench.evidence {self.name}" + (" --full" if self.full else "")

    @property
    def where(self) -> str:
        """When and on what, for a page."""
        known = self.machine
        packages = ("python", "numpy", "torch")
        return (
            f"{self.date}, {known['processor']} ({known['architecture']}), "
            f"{known['cores']} cores; " + ", ".join(f"{p} {self.versions[p]}" for p in packages)
        )


def begun(path: Path | None, name: str, *, full: bool) -> Kept:
    """Return what ``path`` keeps of this run, to go on from, or nothing yet.

    Raises ``UsageError`` for a file of something else.
    """
    new = Kept(
        name=name,
        full=full,
        date=today(),
        machine=machine(),
        versions=versions(),
        finished=[],
    )
    return going_on(path, Kept, new.command) or new


def read(path: Path) -> Kept:
    """Read a file of results; msgspec.ValidationError says where it is not one."""
    return msgspec.json.decode(path.read_bytes(), type=Kept)


def write(kept: Kept, path: Path) -> None:
    """Write results, a cell a line, in one move: an interrupt leaves the old file or the new."""
    replace_file(kept, path, ('{"mark"', '"machine"', '"versions"', '"finished"'))
