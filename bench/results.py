"""What a run leaves behind: one JSON file, checked whenever it is read."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from kellet.sdk.errors import UsageError

__all__ = [
    "Measured",
    "Results",
    "Spread",
    "Timing",
    "going_on",
    "machine",
    "read",
    "replace_file",
    "today",
    "versions",
    "write",
]

FORMAT = 1
_DIGITS = 4


class _Command(Protocol):
    """What says by which command it was written."""

    @property
    def command(self) -> str: ...


_Kept = TypeVar("_Kept", bound=_Command)


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The least, the median and the greatest of a measurement."""

    least: float
    median: float
    greatest: float

    def __post_init__(self) -> None:
        if not 0 < self.least <= self.median <= self.greatest < float("inf"):
            raise ValueError("a spread is least <= median <= greatest, all positive")

    def rounded(self) -> Spread:
        return Spread(*(float(f"{value:.{_DIGITS}g}") for value in msgspec.structs.astuple(self)))


class Timing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One contender: seconds a call over its rounds, and how many times ours that is."""

    seconds: Spread
    ratio: Spread
    rounds: int


class Measured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One case at one size. ``contenders`` has "kellet", the limits and the peers."""

    case: str
    kernel: str
    n: int
    bytes: float  # an element
    contenders: dict[str, Timing]
    left_out: dict[str, str]  # a contender, and why

    def __post_init__(self) -> None:
        if "kellet" not in self.contenders:
            raise ValueError(f"{self.case} has no timing of its own")

    def per_second(self) -> float:
        """Return the bytes moved a second."""
        return self.bytes * self.n / self.contenders["kellet"].seconds.median


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run."""

    format: int
    label: str
    note: str  # what a reader must know of this run, or nothing
    date: str
    threads: int
    backend: str
    memory: str  # "kept" where freed memory is used again, "default" where malloc decides
    limits_by: str  # what the copy and the triad were compiled by
    machine: dict[str, str | int]
    versions: dict[str, str]
    left_out: dict[str, str]  # from the whole run
    measured: list[Measured]

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format {self.format} is not {FORMAT}")

    def of(self, case: str, n: int) -> Measured | None:
        """Return a case at a size, where it was measured."""
        return next((m for m in self.measured if (m.case, m.n) == (case, n)), None)


def read(path: Path) -> Results:
    """Read a file of results; msgspec.ValidationError says where it is not one."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write(results: Results, path: Path) -> None:
    """Write results, a contender a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.encode(results).decode()
    for before in ('{"case"', '"contenders"', '"measured"', '"machine"', '"left_out"'):
        text = text.replace(before, "\n" + before)
    text = text.replace('},"', '},\n"')
    path.write_text(text + "\n", encoding="utf-8")


def going_on(path: Path | None, kind: type[_Kept], command: str) -> _Kept | None:
    """Return what a command of this kind has kept in ``path``; None where there is nothing yet.

    ``kind`` has a ``command``. Raises ``UsageError`` for a file of something else.
    """
    if path is None or not path.is_file():
        return None
    try:
        old = msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{path} holds no results of this", why=str(error), repair="--fresh writes it anew"
        ) from None
    if old.command != command:
        raise UsageError(
            f"{path} was written by {old.command}",
            why="its cells would be dropped",
            repair="name another file with --json",
        )
    return old


def replace_file(results: msgspec.Struct, path: Path, lines: Sequence[str]) -> None:
    """Write results as JSON in one move: an interrupt leaves the old file or the new.

    ``lines``: what begins a line of its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.encode(results).decode()
    for before in lines:
        text = text.replace(before, "\n" + before)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text + "\n", encoding="utf-8")
    fresh.replace(path)


def machine() -> dict[str, str | int]:
    """Return what the figures depend on: processor, cores, last cache, system."""
    info = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (info.read_text(encoding="utf-8").splitlines() if info.is_file() else [])
        if line.startswith(("model name", "Model"))
    ]
    return {
        "processor": (names or [platform.processor() or platform.machine()])[0],
        "architecture": platform.machine(),
        "cores": _cores(),
        "last_cache_bytes": _last_cache(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _last_cache() -> int:
    """Return the size of the last cache in bytes, or 0 where the system does not tell."""
    sizes = [
        path.read_text(encoding="ascii").strip()
        for path in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    ]
    return int(sizes[-1].removesuffix("K")) * 1024 if sizes and sizes[-1].endswith("K") else 0


def versions() -> dict[str, str]:
    """Return the versions of what was compared."""
    found = {"python": platform.python_version()}
    for name in ("numpy", "torch", "numba", "llvmlite", "pytest-benchmark"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def today() -> str:
    """Return the date, UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d")
