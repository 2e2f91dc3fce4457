"""What a disk holds after the power went: all that was synced, and of the rest what luck leaves.

A write that was not synced is there or not; the last one may be torn; a drive may have done a
later one before an earlier one; and a file may have grown without its bytes, which are zeros then.
A name that came or went is only sure once its folder was synced; names change in order, as file
systems keep a journal of them. A sync is believed: nothing can be built on a drive that lies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from faults.power.recorder import (
    Created,
    Event,
    FolderSynced,
    Gone,
    Renamed,
    Synced,
    Truncated,
    Written,
)

__all__ = ["WAYS", "Platter"]

# How much is left of what was not synced; ``all``: a process that was killed loses nothing.
WAYS = ("nothing", "all", "prefix", "torn", "scattered")

_Change = Written | Truncated
_Named = Created | Gone | Renamed


@dataclass
class _File:
    synced: bytearray = field(default_factory=bytearray)
    waiting: list[_Change] = field(default_factory=list)


class Platter:
    """A disk that is told what happens to it, event by event, and can be asked at any time."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._names: dict[str, int] = {}  # that are sure
        self._changes: list[_Named] = []  # that are not

    def take(self, event: Event) -> None:
        match event:
            case Created(file=number):
                self._files[number] = _File()
                self._changes.append(event)
            case Gone() | Renamed():
                self._changes.append(event)
            case Written(file=number) | Truncated(file=number):
                self._files[number].waiting.append(event)
            case Synced(file=number):
                file = self._files[number]
                for change in file.waiting:
                    _apply(file.synced, change)
                file.waiting.clear()
            case FolderSynced(path=folder):
                self._sync_names(folder)

    def after_cut(self, folder: Path, way: str, luck: Random) -> dict[str, bytes]:
        """The files below a folder as the next start finds them, by their paths."""
        known = {"nothing": 0, "all": len(self._changes)}
        names = dict(self._names)
        for change in self._changes[: known.get(way, luck.randint(0, len(self._changes)))]:
            _rename(names, change)
        return {
            name: _left(self._files[number], way, luck)
            for name, number in sorted(names.items())
            if folder in Path(name).parents
        }

    def _sync_names(self, folder: str) -> None:
        later = []
        for change in self._changes:
            if str(Path(change.path).parent) == folder:
                _rename(self._names, change)
            else:
                later.append(change)
        self._changes = later


def _rename(names: dict[str, int], change: _Named) -> None:
    match change:
        case Created(file=number, path=path):
            names[path] = number
        case Gone(path=path):
            names.pop(path, None)
        case Renamed(path=path, to=to):
            if path in names:
                names[to] = names.pop(path)


def _apply(content: bytearray, change: _Change) -> None:
    if isinstance(change, Truncated):
        del content[change.size :]
        _grow(content, change.size)
        return
    _grow(content, change.offset)
    content[change.offset : change.offset + len(change.data)] = change.data


def _grow(content: bytearray, size: int) -> None:
    content.extend(bytes(max(0, size - len(content))))


def _left(file: _File, way: str, luck: Random) -> bytes:
    content = bytearray(file.synced)
    waiting = file.waiting
    if way == "scattered":
        for change in waiting:
            if luck.random() < 0.5:
                _apply(content, _torn(change, luck) if luck.random() < 0.25 else change)
            elif isinstance(change, Written) and luck.random() < 0.5:
                _grow(content, change.offset + len(change.data))
        return bytes(content)
    whole = {"nothing": 0, "all": len(waiting)}.get(way, luck.randint(0, len(waiting)))
    for change in waiting[:whole]:
        _apply(content, change)
    if way == "torn" and whole < len(waiting):
        _apply(content, _torn(waiting[whole], luck))
    return bytes(content)


def _torn(change: _Change, luck: Random) -> _Change:
    if isinstance(change, Truncated):
        return change
    return Written(change.file, change.offset, change.data[: luck.randint(0, len(change.data))])
