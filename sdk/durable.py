"""Bytes that survive a power cut: a SQLite database, and whole files.

Both ends of the link keep their state through this module, so that there is one
place that says what "on the disk" means.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

from kellet.sdk.errors import StorageError

__all__ = ["Database", "ReadInParts", "room", "write_file"]

_PART = 1 << 18  # bytes
_ROWS = 64  # answers that are remembered
_SHORT = 256  # bytes of the longest value in one
_UNASKED = ()

_ELSEWHERE = "check the path and its permissions, or choose another --state directory"
_SPACE = "free some space on the disk; nothing was lost"
_DISK = "check the disk's space, quota and health; nothing was lost"


class ReadInParts(Protocol):
    """Bytes that are read in parts; ``bytes`` are such."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


def room(data: ReadInParts) -> tuple[str, bytes | int]:
    """What stands for a blob in a statement, and its value; ``Database.fill`` does the rest.

    SQLite copies what it is given whole, and a row whole to change one column of it. So a large
    blob is the last in its row, where zeros take no memory, and is then written in parts. A
    short one goes as it is: a connection of ``sqlite3`` keeps 80 bytes of each blob that it ever
    opened in parts.
    """
    return ("?", data[:]) if len(data) <= _PART else ("zeroblob(?)", len(data))


class Database:
    """SQLite in ``path`` (WAL, ``synchronous=FULL``, read back), or (None) in memory.

    ``schema`` is made if it is absent; ``version`` is the format that is read and written. One
    that it has ``grown_from``, of which it differs by whole tables alone, becomes this one; any
    other is refused. Every failure of the disk is a ``StorageError``.
    """

    def __init__(
        self, path: Path | None, schema: str, version: int, *, grown_from: Sequence[int] = ()
    ) -> None:
        self.where = str(path) if path else ":memory:"
        self._disk = _Disk(self.where)
        # Short answers to ``one`` since the last transaction; None inside a transaction. Nobody
        # else writes to the file (see ``kellet.sdk.lock``).
        self._answers: dict[tuple[Any, ...], tuple[Any, ...] | None] | None = None
        with self._disk:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self.where, isolation_level=None, check_same_thread=False)
            # From Python 3.13 on a connection that is merely let go of warns.
            weakref.finalize(self, self._db.close)
            if path is not None:
                self._make_durable()
            with self.transaction():
                self._migrate(schema, version, grown_from)

    @classmethod
    def reading(cls, path: Path, version: int) -> Self:
        """The database that lies there, to be looked into: its owner may be at work in it.

        ``StorageError`` where it is of another format.
        """
        self = cls.__new__(cls)
        self.where = str(path)
        self._disk = _Disk(self.where)
        self._answers = None  # its owner may write at any time
        with self._disk:
            self._db = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None
            )
            weakref.finalize(self, self._db.close)
            self._check_format(version)
        return self

    def _check_format(self, *known: int) -> None:
        (found,) = self._db.execute("pragma user_version").fetchone()
        if found not in known:
            raise StorageError(
                f"{self.where} has format {found}",
                why=f"this version of Kellet reads {known[-1]}",
                repair="update Kellet or choose another --state directory",
            )

    def _make_durable(self) -> None:
        # Read back: a build or a file system may silently answer otherwise.
        (mode,) = self._db.execute("pragma journal_mode = wal").fetchone()
        self._db.execute("pragma synchronous = full")
        (synchronous,) = self._db.execute("pragma synchronous").fetchone()
        if mode != "wal" or synchronous != 2:
            raise StorageError(
                f"{self.where} cannot be kept safe from power loss",
                why=f"SQLite answers journal mode {mode}, synchronous {synchronous}",
                repair="keep the state on a local disk",
            )

    def _migrate(self, schema: str, version: int, grown_from: Sequence[int]) -> None:
        self._check_format(0, *grown_from, version)
        for statement in schema.split(";"):
            self._db.execute(statement)
        self._db.execute(f"pragma user_version = {version}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, on the disk when the block ends."""
        with self._disk:
            self._answers = None
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                raise
            finally:
                self._answers = None if self._db.in_transaction else {}

    def run(self, statement: str, *values: object) -> None:
        """One statement, inside a transaction."""
        self._db.execute(statement, values)

    def all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._disk:
            return self._db.execute(query, values).fetchall()

    def one(self, query: str, *values: object) -> tuple[Any, ...] | None:
        """The first row, or None. What a machine asks at every message is answered from memory."""
        asked = (query, *values)
        answers = self._answers
        if answers is not None and (known := answers.get(asked, _UNASKED)) is not _UNASKED:
            return known
        with self._disk:
            row: tuple[Any, ...] | None = self._db.execute(query, values).fetchone()
            answers = self._answers
            if answers is not None and _is_short(row):
                if len(answers) >= _ROWS:
                    answers.clear()
                answers[asked] = row
            return row

    @contextmanager
    def blob(
        self, table: str, column: str, row: int, *, write: bool = False
    ) -> Iterator[sqlite3.Blob]:
        """A blob of the row with that id, read or (inside a transaction) written in parts."""
        with self._disk, self._db.blobopen(table, column, row, readonly=not write) as blob:
            yield blob

    def fill(self, table: str, column: str, row: int, data: ReadInParts) -> None:
        """Write ``data`` where ``room`` has been made for it, inside the same transaction."""
        if len(data) <= _PART:
            return
        with self.blob(table, column, row, write=True) as blob:
            for start in range(0, len(data), _PART):
                blob.write(data[start : start + _PART])

    def close(self) -> None:
        self._answers = None
        self._db.close()


class _Disk:
    """One thread at a time, and every failure of the disk as a ``StorageError``."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.RLock()  # a training reads while its driver may write

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self._lock.release()
        if error is None or isinstance(error, sqlite3.ProgrammingError | sqlite3.IntegrityError):
            return  # none, or ours and not the disk's
        if isinstance(error, sqlite3.Error):
            raise StorageError(
                f"{self._where} cannot be read or written",
                why=str(error),
                repair=_repair(str(error)),
            ) from None
        if isinstance(error, OSError):
            raise StorageError(
                f"{self._where} cannot be opened",
                why=error.strerror or str(error),
                repair=_SPACE if error.errno == errno.ENOSPC else _ELSEWHERE,
            ) from None


def _is_short(row: tuple[Any, ...] | None) -> bool:
    """Whether a row takes next to no memory."""
    return row is None or not any(isinstance(v, bytes | str) and len(v) > _SHORT for v in row)


def _repair(sqlite_says: str) -> str:
    if "full" in sqlite_says:
        return _SPACE
    return _DISK if "I/O" in sqlite_says else _ELSEWHERE


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Put a file on the disk whole or not at all. ``StorageError`` where it cannot be."""
    draft = path.with_suffix(".draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise StorageError(
            f"{len(data)} bytes cannot be written to {path.parent}",
            why=error.strerror or str(error),
            repair=_SPACE if error.errno == errno.ENOSPC else "check the path and its permissions",
        ) from None
