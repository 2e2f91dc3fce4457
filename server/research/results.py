"""A sweep's directory: what it was begun with, its rounds and its runs, as JSON lines.

``sweep.json`` is the configuration. ``rounds.jsonl`` has a `RoundRow` a line, written as the
round ends; ``runs.jsonl`` a `RunRow` a line, on the disk after its rounds are. A run without its
line there is not finished, and begins again: what it left in ``rounds.jsonl`` is taken away when
the directory is next opened. Of a line that a kill cut off nothing remains.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Struct

from kellet.sdk.durable import write_file
from kellet.sdk.errors import StorageError, UsageError
from kellet.sdk.lock import StateLock
from kellet.server.research.rows import RoundRow, RunRow

__all__ = ["CONFIGURATION", "ROUNDS", "RUNS", "Results", "read_results"]

CONFIGURATION, ROUNDS, RUNS = "sweep.json", "rounds.jsonl", "runs.jsonl"
_Row = TypeVar("_Row", RoundRow, RunRow)


class Results:
    """The rows of a sweep, in ``folder`` or (None) in memory. Closed as a context manager.

    ``configuration``: what must be the same for the rows to belong together, plain data.
    ``runs`` and ``rounds`` are the finished ones, old and new. Raises ``UsageError`` for a
    directory of another configuration, naming the difference, and ``StorageError`` for one
    that is in use or damaged.
    """

    def __init__(self, folder: Path | None, configuration: Mapping[str, Any]) -> None:
        self.folder = folder
        self.runs: list[RunRow] = []
        self.rounds: list[RoundRow] = []
        self._open_rounds: dict[str, list[RoundRow]] = {}
        self._files: dict[str, _Lines] = {}
        self._lock: StateLock | None = None
        if folder is None:
            return
        self._lock = StateLock(folder)
        try:
            self._adopt(folder, configuration)
            self._files = {name: _Lines(folder / name) for name in (ROUNDS, RUNS)}
        except BaseException:
            self.close()
            raise

    def _adopt(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        path = folder / CONFIGURATION
        if path.is_file():
            _same(folder, _configuration(path), configuration)
        elif any((folder / name).exists() for name in (ROUNDS, RUNS)):
            raise StorageError(
                f"{folder} has results and no {CONFIGURATION}",
                why="it is not known what they are of",
                repair="name another --out directory",
            )
        else:
            write_file(path, (json.dumps(configuration, indent=1) + "\n").encode())
        self.runs, torn = _read(folder / RUNS, RunRow)
        if torn:
            _write(folder / RUNS, self.runs)
        finished = {run.cell for run in self.runs}
        rounds, torn = _read(folder / ROUNDS, RoundRow)
        self.rounds = [row for row in rounds if row.cell in finished]
        if torn or len(self.rounds) < len(rounds):
            _write(folder / ROUNDS, self.rounds)

    def round(self, row: RoundRow) -> None:
        """Keep a round of a run that is not finished."""
        self._open_rounds.setdefault(row.cell, []).append(row)
        if self._files:
            self._files[ROUNDS].append(row)

    def run(self, row: RunRow) -> None:
        """Keep a run that has ended; its rounds are on the disk first."""
        if self._files:
            self._files[ROUNDS].sync()
            self._files[RUNS].append(row)
            self._files[RUNS].sync()
        self.rounds += self._open_rounds.pop(row.cell, [])
        self.runs.append(row)

    def close(self) -> None:
        """Let go of the directory. Idempotent."""
        for file in self._files.values():
            file.close()
        self._files = {}
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_results(folder: Path) -> tuple[dict[str, Any], list[RunRow], list[RoundRow]]:
    """The configuration of a sweep, its finished runs and their rounds; nothing is written.

    Raises ``UsageError`` where ``folder`` holds no sweep, ``StorageError`` for one that is damaged.
    """
    path = folder / CONFIGURATION
    if not path.is_file():
        raise UsageError(
            f"there is no sweep in {folder}",
            why=f"it has no {CONFIGURATION}",
            repair="give the --out directory of kellet simulate",
        )
    runs, _ = _read(folder / RUNS, RunRow)
    finished = {run.cell for run in runs}
    rounds, _ = _read(folder / ROUNDS, RoundRow)
    return _configuration(path), runs, [row for row in rounds if row.cell in finished]


class _Lines:
    """A file that grows by whole lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _disk(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def append(self, row: Struct) -> None:
        line = memoryview(msgspec.json.encode(row) + b"\n")
        with _disk(self._path):
            while line:
                line = line[os.write(self._fd, line) :]

    def sync(self) -> None:
        with _disk(self._path):
            os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written",
            why=error.strerror or str(error),
            repair="free some space or check its permissions; the same command goes on",
        ) from None


def _read(path: Path, kind: type[_Row]) -> tuple[list[_Row], bool]:
    """The rows of a file, and whether its last line was cut off. Raises ``StorageError``."""
    rows: list[_Row] = []
    raw = path.read_bytes() if path.is_file() else b""
    *lines, rest = raw.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            rows.append(msgspec.json.decode(line, type=kind))
        except msgspec.MsgspecError as error:
            raise StorageError(
                f"{path} cannot be read in line {number}",
                why=str(error),
                repair="take the line away, or name another --out directory",
            ) from None
    return rows, bool(rest)


def _write(path: Path, rows: Iterable[Struct]) -> None:
    write_file(path, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def _configuration(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise StorageError(
            f"{path} cannot be read", why=str(error), repair="name another --out directory"
        ) from None
    return found if isinstance(found, dict) else {}


def _same(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise ``UsageError`` where the two differ, saying in what."""
    old, new = dict(_leaves(there)), dict(_leaves(json.loads(json.dumps(here))))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    if not names:
        return
    # A digest says that something differs; where a setting says what, that is enough.
    told = [name for name in names if name not in ("data", "runs")] or names
    differences = [
        f"{name} is {_said(new, name)}, and there it was {_said(old, name)}" for name in told
    ]
    raise UsageError(
        f"{folder} holds another sweep",
        why="; ".join(differences),
        repair="name another --out directory, or give the settings that it was begun with",
    )


def _leaves(value: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, part in value.items():
        if isinstance(part, dict):
            yield from part.items()
        else:
            yield name, part


def _said(values: Mapping[str, Any], name: str) -> str:
    if name not in values or values[name] is None:
        return "not given"
    value = values[name]
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
