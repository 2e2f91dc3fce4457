"""Profiles as values, and the reader that says which key is wrong, why, and what it may be.

Standard library alone: setup.py loads this file before anything is installed.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

__all__ = ["Profile", "load", "names", "read"]

FOLDER = Path(__file__).resolve().parent


class _Arch(NamedTuple):
    triple: str
    cpus: tuple[str, ...]  # as LLVM calls them; "generic" is none in particular
    has_python: bool = True


_ARCHES = {
    "aarch64": _Arch(
        "aarch64-unknown-linux-gnu", ("cortex-a53", "cortex-a72", "cortex-a76", "generic")
    ),
    "thumbv7em": _Arch("thumbv7em-unknown-none-eabihf", ("cortex-m7",), has_python=False),
    "x86_64": _Arch("x86_64-unknown-linux-gnu", ("generic",)),
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One class of device.

    ``name`` is that of its file, ``arch`` the processor as ``platform.machine()``
    says it, ``triple`` and ``cpu`` are LLVM's words for the system and for the
    processor that the kernels are tuned for.
    """

    name: str
    arch: str
    triple: str
    cpu: str

    @property
    def kernels_only(self) -> bool:
        """Whether the device runs the C kernels, but no Python and so no wheel."""
        return not _ARCHES[self.arch].has_python


def names() -> tuple[str, ...]:
    """Return the names of the profiles that Kellet brings, in order."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load(name: str) -> Profile:
    """Return one of Kellet's profiles; ValueError for a name that is none, or a wrong file."""
    if name not in names():
        raise ValueError(f"there is no profile {name!r}; the profiles are {', '.join(names())}")
    return read(FOLDER / f"{name}.toml")


def read(path: Path) -> Profile:
    """Return the profile in a TOML file, whose name is the profile's.

    Raises OSError where it cannot be read, and ValueError where it is wrong.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is not TOML: {error}") from error
    known = [field.name for field in fields(Profile)]
    for key, value in values.items():
        if key not in known:
            _refuse(path, key, "is unknown", f"the keys are {', '.join(known)}")
        if not isinstance(value, str):
            _refuse(path, key, f"is {value!r}", "it must be a string")
    for key in known:
        if key not in values:
            _refuse(path, key, "is missing", f"the keys are {', '.join(known)}")
    profile = Profile(**values)
    _one_of(path, "name", profile.name, (path.stem,), "a profile is found by its file")
    _one_of(path, "arch", profile.arch, tuple(_ARCHES), "there are kernels for these alone")
    arch = _ARCHES[profile.arch]
    _one_of(path, "triple", profile.triple, (arch.triple,), f"arch is {profile.arch}")
    _one_of(path, "cpu", profile.cpu, arch.cpus, f"arch is {profile.arch}")
    return profile


def _one_of(path: Path, key: str, value: str, allowed: tuple[str, ...], why: str) -> None:
    if value not in allowed:
        _refuse(path, key, f"is {value!r}", f"as {why}, it may be {' or '.join(allowed)}")


def _refuse(path: Path, key: str, what: str, repair: str) -> None:
    raise ValueError(f"{path.name}: {key} {what}; {repair}")
