"""A disk that fails at the level of SQL: between two statements, in one, or in a commit.

Every write is a named point, as is every event and effect of the process (``Points``). A process
is killed at a point, or the disk refuses there; a commit may be torn: it was written, in part, and
nobody was told.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from machines.nodes import Killed

from kellet.sdk import durable
from kellet.sdk.errors import StorageError

__all__ = ["Points", "SqlDisk"]

_WRITES = ("begin", "insert", "update", "delete", "commit", "create")
FULL = "database or disk is full"


class Points:
    """The places where a process can die, by name; how often it came by each of them.

    ``die_at``: (name, how many more times it passes), or (None, how many more points of any name).
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.die_at: tuple[str | None, int] | None = None
        self.dead = False

    def pass_by(self, name: str) -> None:
        """Raises ``Killed`` where this is the point."""
        if self.dead:
            raise Killed
        self.seen[name] += 1
        if self.due(name):
            self.dead = True
            raise Killed

    def due(self, name: str) -> bool:
        """Count down to the point of death; True at it."""
        if self.die_at is None or self.die_at[0] not in (None, name):
            return False
        wanted, more = self.die_at
        self.die_at = (wanted, more - 1) if more > 1 else None
        return more <= 1


class SqlDisk:
    """What a process's databases lie on."""

    def __init__(self, points: Points, luck: Random) -> None:
        self.points = points
        self.full = False
        self.fail_in: int | None = None  # after so many more writes one of them fails
        self.failed = 0
        self._luck = luck
        self._torn: tuple[str, int] | None = None  # a write-ahead log, and the bytes that are left

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Databases that are opened in this block lie on this disk."""
        real = durable.sqlite3
        durable.sqlite3 = SimpleNamespace(  # type: ignore[assignment]
            connect=lambda *a, **k: _Connection(real.connect(*a, **k), self, Path(a[0])),
            Error=real.Error,
            ProgrammingError=real.ProgrammingError,
            IntegrityError=real.IntegrityError,
        )
        try:
            yield
        finally:
            durable.sqlite3 = real

    def tear(self, copy: Path) -> bool:
        """In the copy that the next process opens: the last commit is there in part."""
        if self._torn is None:
            return False
        name, left = self._torn
        with open(copy / name, "r+b") as log:
            log.truncate(left)
        return True

    def refuse(self) -> str:
        """What the disk says to a write now; empty where it takes it."""
        if self.full:
            self.failed += 1
            return FULL
        if self.fail_in is None:
            return ""
        self.fail_in -= 1
        if self.fail_in > 0:
            return ""
        self.fail_in = None
        self.failed += 1
        return "disk I/O error"

    def run(self, path: Path, sql: str, write: Callable[[], Any]) -> Any:
        """Pass the points around a statement that writes."""
        name = _name(sql)
        self.points.pass_by(f"sql, before {name}")
        refusal = self.refuse()
        if refusal:
            raise sqlite3.OperationalError(refusal)
        log = path.with_name(path.name + "-wal")
        before = log.stat().st_size if name == "commit" and log.exists() else 0
        done = write()
        if name == "commit":
            self._perhaps_tear(log, before)
        self.points.pass_by(f"sql, after {name}")
        return done

    def _perhaps_tear(self, log: Path, before: int) -> None:
        after = log.stat().st_size
        torn = "sql, torn commit"
        if after <= before:
            return  # the log began anew: what is torn off would be older than this commit
        self.points.seen[torn] += 1
        if self.points.due(torn):
            self._torn = (log.name, self._luck.randrange(before, after))
            self.points.dead = True
            raise Killed

    def check_room(self, what: str) -> None:
        """For files: ``StorageError`` where the disk is full."""
        if self.full:
            self.failed += 1
            raise StorageError(f"{what} cannot be written", why="the disk is full")


class _Connection:
    """A connection to SQLite whose writes pass by the points."""

    def __init__(self, real: sqlite3.Connection, disk: SqlDisk, path: Path) -> None:
        self._real = real
        self._disk = disk
        self._path = path

    @property
    def in_transaction(self) -> bool:
        return self._real.in_transaction

    def execute(self, sql: str, values: Any = ()) -> Any:
        if self._disk.points.dead:
            raise Killed  # a dead process does not roll back, either
        if sql.lstrip().startswith(_WRITES):
            return self._disk.run(self._path, sql, lambda: self._real.execute(sql, values))
        return self._real.execute(sql, values)

    def blobopen(self, *where: Any, readonly: bool = False) -> Any:
        if self._disk.points.dead:
            raise Killed
        blob = self._real.blobopen(*where, readonly=readonly)
        return blob if readonly else _Blob(blob, self._disk, self._path)

    def close(self) -> None:
        self._real.close()


class _Blob:
    """A blob that is written in parts, each of which may be the last."""

    def __init__(self, real: Any, disk: SqlDisk, path: Path) -> None:
        self._real = real
        self._disk = disk
        self._path = path

    def write(self, data: Any) -> None:
        self._disk.run(self._path, "blob part", lambda: self._real.write(data))

    def __enter__(self) -> _Blob:
        self._real.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._real.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _name(sql: str) -> str:
    """The verb and the table of a statement."""
    words = sql.split()
    if words[0] == "create":
        return "create"
    at = {"insert": 2, "delete": 2, "update": 1}.get(words[0])
    return words[0] if at is None else f"{words[0]} {words[at]}"
