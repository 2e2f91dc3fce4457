"""What a server and its devices did to their disks, and what they were told is safe."""

from __future__ import annotations

import hashlib
import sqlite3
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from faults.power.files import recording_files
from faults.power.recorder import Event, recording
from numpy.typing import NDArray

from kellet.sdk.durable import Database

__all__ = ["Commit", "History", "recorded", "state_of"]

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction between two events; what the database held after it."""

    start: int
    end: int
    state: str


@dataclass
class History:
    """``disks``: folders below ``root``, the server's first. ``events``: of all, in order.

    ``commits``: of each database. ``deltas``: what each update does to its c_i.
    ``receipts``: (events until then, update, counted) of each that was sent.
    """

    root: Path
    disks: tuple[str, ...]
    events: list[Event]
    commits: dict[Path, list[Commit]] = field(default_factory=dict)
    deltas: dict[bytes, I64] = field(default_factory=dict)
    receipts: list[tuple[int, bytes, bool]] = field(default_factory=list)

    def allowed(self, path: Path, events: int) -> set[str]:
        """What a database may hold after so many events: the last commit's, or the next one's."""
        commits = self.commits[path]
        done = bisect_right(commits, events, key=lambda commit: commit.end)
        states = {commits[done - 1].state if done else EMPTY}
        if done < len(commits) and commits[done].start < events:
            states.add(commits[done].state)
        return states

    def sent(self, events: int) -> dict[bytes, bool]:
        """The receipts that had left by then."""
        count = bisect_left(self.receipts, events + 1, key=lambda receipt: receipt[0])
        return {uid: counted for _, uid, counted in self.receipts[:count]}


def state_of(database: sqlite3.Connection) -> str:
    """A digest of all rows of all tables, and of the format."""
    digest = hashlib.sha256()
    tables = database.execute("select name from sqlite_master where type = 'table' order by name")
    for (table,) in tables.fetchall():
        digest.update(repr(table).encode())
        for row in database.execute(f"select rowid, * from {table} order by rowid"):
            digest.update(repr(row).encode())
    (version,) = database.execute("pragma user_version").fetchone()
    return f"{version} {digest.hexdigest()}"


with sqlite3.connect(":memory:") as _nothing:
    EMPTY = state_of(_nothing)
_nothing.close()


@contextmanager
def _accounted(history: History) -> Iterator[None]:
    """Note each transaction of the product, and what its database holds when it returns."""
    real = Database.transaction

    @contextmanager
    def transaction(self: Database) -> Iterator[None]:
        start = len(history.events)
        with real(self):
            yield
        end = len(history.events)
        commit = Commit(start, end, state_of(self._db))
        history.commits.setdefault(Path(self.where), []).append(commit)

    Database.transaction = transaction  # type: ignore[method-assign]
    try:
        yield
    finally:
        Database.transaction = real  # type: ignore[method-assign]


@contextmanager
def recorded(root: Path, disks: tuple[str, ...]) -> Iterator[History]:
    """What the product does in this block, over databases that it opens below ``root``."""
    with recording() as events, recording_files(events):
        history = History(root, disks, events)
        with _accounted(history):
            yield history
