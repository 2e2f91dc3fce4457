"""The JSON file of an experiment: what is finished, kept as it grows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from bench.results import machine, today, versions
from kellet.sdk.errors import UsageError

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
    if path is not None and path.is_file():
        try:
            old = read(path)
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"{path} holds no results of this", why=str(error), repair="--fresh writes it anew"
            ) from None
        if old.command != new.command:
            raise UsageError(
                f"{path} was written by {old.command}",
                why="its cells would be dropped",
                repair="name another file with --json",
            )
        return old
    return new


def read(path: Path) -> Kept:
    """Read a file of results; msgspec.ValidationError says where it is not one."""
    return msgspec.json.decode(path.read_bytes(), type=Kept)


def write(kept: Kept, path: Path) -> None:
    """Write results, a cell a line, in one move: an interrupt leaves the old file or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.encode(kept).decode()
    for before in ('{"mark"', '"machine"', '"versions"', '"finished"'):
        text = text.replace(before, "\n" + before)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text + "\n", encoding="utf-8")
    fresh.replace(path)
