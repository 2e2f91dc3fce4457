"""What SQLite asks of the disk, as it asks it: the very library that ``sqlite3`` is made of.

SQLite reaches files through a table of functions, its VFS. ``recording`` puts another one in front
of the system's: each call still happens, on real files, and each that changes the disk is noted.
Nothing of the product knows of it. What a file's ``-shm`` holds is memory, and no disk's.
"""

from __future__ import annotations

import _sqlite3
import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Created",
    "Event",
    "FolderSynced",
    "Gone",
    "Synced",
    "Truncated",
    "Written",
    "recording",
]


@dataclass(frozen=True, slots=True)
class Created:
    """A file that was not there: ``file`` is its number, whatever becomes of its name."""

    file: int
    path: str


@dataclass(frozen=True, slots=True)
class Written:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """All that was done to the file's contents is on the disk."""

    file: int


@dataclass(frozen=True, slots=True)
class Gone:
    """A name was removed."""

    path: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """A file took another name, in the place of the one that had it."""

    path: str
    to: str


@dataclass(frozen=True, slots=True)
class FolderSynced:
    """All names of the folder that came or went are on the disk."""

    path: str


Event = Created | Written | Truncated | Synced | Gone | Renamed | FolderSynced

_FILE = c_void_p
_WRITE = CFUNCTYPE(c_int, _FILE, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, _FILE, c_int64)
_SYNC = CFUNCTYPE(c_int, _FILE, c_int)
# The name as an address: SQLite keeps it.
_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, _FILE, c_int, POINTER(c_int))
_DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_OPEN_FOLDER = CFUNCTYPE(c_int, c_char_p, POINTER(c_int))
_OK = 0


class _Methods(Structure):
    """sqlite3_io_methods, version 3."""

    _fields_ = (
        ("version", c_int),
        ("close", c_void_p),
        ("read", c_void_p),
        ("write", _WRITE),
        ("truncate", _TRUNCATE),
        ("sync", _SYNC),
        ("others", c_void_p * 13),
    )


class _Vfs(Structure):
    """sqlite3_vfs, version 3."""

    _fields_ = (
        ("version", c_int),
        ("file_size", c_int),
        ("longest_path", c_int),
        ("next", c_void_p),
        ("name", c_char_p),
        ("data", c_void_p),
        ("open", _OPEN),
        ("delete", _DELETE),
        ("others", c_void_p * 11),
        ("set_system_call", CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p)),
        ("get_system_call", CFUNCTYPE(c_void_p, c_void_p, c_char_p)),
        ("next_system_call", c_void_p),
    )


class _Recorder:
    """The functions in front of the system's, and what they saw."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.events: list[Event] = []
        self._library = library
        library.sqlite3_vfs_find.restype = POINTER(_Vfs)
        self._real = library.sqlite3_vfs_find(None)
        self._files: dict[int, int] = {}  # where SQLite has an open file: its number
        self._numbers: dict[str, int] = {}  # the file that has this name now
        self._count = 0
        self._methods: dict[int, tuple[_Methods, _Methods]] = {}  # the system's: (its own, ours)
        self._own = _Vfs.from_buffer_copy(self._real.contents)
        self._own.name = b"kellet-recorder"
        self._own.open = _OPEN(self._open)
        self._own.delete = _DELETE(self._delete)
        self._folder = _OPEN_FOLDER(self._open_folder)
        self._real_folder = _OPEN_FOLDER(
            self._real.contents.get_system_call(ctypes.cast(self._real, c_void_p), _FOLDER)
        )

    def enter(self) -> None:
        real = self._real.contents
        self._library.sqlite3_vfs_register(ctypes.byref(self._own), 1)
        at = ctypes.cast(self._real, c_void_p)
        assert real.set_system_call(at, _FOLDER, ctypes.cast(self._folder, c_void_p)) == _OK

    def leave(self) -> None:
        """The system's again. Databases that are still open go on being recorded."""
        at = ctypes.cast(self._real, c_void_p)
        self._real.contents.set_system_call(at, _FOLDER, None)
        self._library.sqlite3_vfs_register(self._real, 1)
        self._library.sqlite3_vfs_unregister(ctypes.byref(self._own))

    # -- what SQLite calls ----------------------------------------------------------

    def _open(self, _vfs: int, name: int | None, file: int, flags: int, out: object) -> int:
        path = ctypes.string_at(name).decode() if name else ""
        was_there = Path(path).exists()
        done = self._real.contents.open(ctypes.cast(self._real, c_void_p), name, file, flags, out)
        table = ctypes.cast(file, POINTER(c_void_p))
        if done != _OK or not path or not table[0]:
            return int(done)
        if not was_there:
            self._count += 1
            self._numbers[path] = self._count
            self.events.append(Created(self._count, path))
        self._files[file] = self._numbers[path]
        table[0] = ctypes.addressof(self._recording(table[0]))
        return _OK

    def _recording(self, address: int) -> _Methods:
        """The system's table of a file's functions, with ours in front."""
        if address not in self._methods:
            real = _Methods.from_address(address)
            own = _Methods.from_buffer_copy(real)
            own.write = _WRITE(lambda *given: self._write(real, *given))
            own.truncate = _TRUNCATE(lambda *given: self._truncate(real, *given))
            own.sync = _SYNC(lambda *given: self._sync(real, *given))
            self._methods[address] = (real, own)
        return self._methods[address][1]

    def _write(self, real: _Methods, file: int, data: int, size: int, offset: int) -> int:
        event = Written(self._files[file], offset, ctypes.string_at(data, size))
        return self._noted(real.write(file, data, size, offset), event)

    def _truncate(self, real: _Methods, file: int, size: int) -> int:
        return self._noted(real.truncate(file, size), Truncated(self._files[file], size))

    def _sync(self, real: _Methods, file: int, flags: int) -> int:
        return self._noted(real.sync(file, flags), Synced(self._files[file]))

    def _delete(self, _vfs: int, name: bytes, sync: int) -> int:
        # A folder that is synced thereafter is seen by ``_open_folder``, too late: note it first.
        path = name.decode()
        there = Path(path).exists()
        before = len(self.events)
        done = self._real.contents.delete(ctypes.cast(self._real, c_void_p), name, sync)
        if done == _OK and there:
            self.events.insert(before, Gone(path))
        return int(done)

    def _open_folder(self, name: bytes, out: object) -> int:
        """SQLite opens the folder of a file for nothing but to sync it."""
        folder = str(Path(name.decode()).parent)
        return self._noted(self._real_folder(name, out), FolderSynced(folder))

    def _noted(self, done: int, event: Event) -> int:
        if done == _OK:
            self.events.append(event)
        return done


_FOLDER = b"openDirectory"
_kept: list[_Recorder] = []  # a database that is still open calls its functions


@contextmanager
def recording() -> Iterator[list[Event]]:
    """Databases that are opened in this block are recorded; the list grows as they work."""
    library = ctypes.CDLL(_sqlite3.__file__)
    recorder = _Recorder(library)
    _kept.append(recorder)
    recorder.enter()
    try:
        yield recorder.events
    finally:
        recorder.leave()
