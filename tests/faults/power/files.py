"""What the product asks of the disk for its own files: ``write_file``'s, and the spool's.

They are written through the page cache and through maps, where no write can be noted; what counts
is what a sync finds. Until its first sync a file is taken for absent or torn.
"""

from __future__ import annotations

import itertools
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults.power.recorder import Created, Event, FolderSynced, Gone, Renamed, Synced, Written

__all__ = ["in_memory", "recording_files"]

_FIRST = 1_000_000  # SQLite's files have the numbers below


@contextmanager
def in_memory() -> Iterator[Path]:
    """A folder in memory, where there is one: syncs are noted, and need not be waited for."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kellet-power-", dir=memory) as made:
        yield Path(made)


@contextmanager
def recording_files(events: list[Event]) -> Iterator[None]:
    """Add what Python does to files in this block; of those that were never synced, nothing."""
    numbers = itertools.count(_FIRST)
    known: dict[str, int] = {}
    real = {name: getattr(os, name) for name in ("fsync", "replace", "unlink")}

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            real["fsync"](descriptor)
            events.append(FolderSynced(path))
            return
        if path not in known:
            known[path] = next(numbers)
            events.append(Created(known[path], path))
        events.append(Written(known[path], 0, Path(path).read_bytes()))
        real["fsync"](descriptor)
        events.append(Synced(known[path]))

    def replace(source: Any, target: Any) -> None:
        real["replace"](source, target)
        if os.fspath(source) in known:
            known[os.fspath(target)] = known.pop(os.fspath(source))
            events.append(Renamed(os.fspath(source), os.fspath(target)))

    def unlink(path: Any, **options: Any) -> None:
        real["unlink"](path, **options)
        if known.pop(os.fspath(path), None) is not None:
            events.append(Gone(os.fspath(path)))

    os.fsync, os.replace, os.unlink = fsync, replace, unlink  # type: ignore[assignment]
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)
