"""Where a demo keeps its things, cleared of what an earlier demo left there."""

from __future__ import annotations

import shutil
from pathlib import Path

from kellet.sdk.durable import write_file
from kellet.sdk.errors import StorageError, UsageError
from kellet.sdk.lock import StateLock

__all__ = ["MARK", "prepare"]

MARK = "kellet-demo"  # this file says that the directory is a demo's, and may be cleared
LOCK = "lock"


def prepare(state: Path) -> StateLock:
    """Make ``state`` an empty directory of our own, and hold its lock.

    An earlier demo's is cleared. Raises ``UsageError`` for one that holds anything else,
    ``StorageError`` where another demo is at work in it or the disk refuses.
    """
    if state.exists() and not (state / MARK).is_file():
        found = [] if not state.is_dir() else [p.name for p in state.iterdir() if p.name != LOCK]
        if found or not state.is_dir():
            raise UsageError(
                f"{state} cannot hold the demo's state",
                why=f"it holds {', '.join(sorted(found)[:3])}, which no demo left there"
                if found
                else "it is a file",
                repair="give --state a directory that is new, empty or an earlier demo's",
            )
    lock = StateLock(state)
    try:
        for path in state.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name not in (LOCK, MARK):
                path.unlink()
        write_file(state / MARK, b"A demo's state. The next demo in this place clears it.\n")
    except OSError as error:
        lock.release()
        raise StorageError(
            f"{state} cannot be cleared",
            why=error.strerror or str(error),
            repair="remove it, or give another --state directory",
        ) from None
    return lock
