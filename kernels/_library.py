"""Where the compiled library lies, and whether it belongs to these sources.

Standard library alone: setup.py loads this file before anything is installed.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
from pathlib import Path

__all__ = [
    "MACHINES",
    "MARK",
    "SOURCES",
    "embedded_digest",
    "is_fresh",
    "library_path",
    "source_digest",
    "system_linker",
]

MACHINES = ("aarch64", "x86_64")  # what platform.machine() says
FOLDER = Path(__file__).resolve().parent

# What decides the library's machine code.
SOURCES = (
    "_dispatch.py",
    "_jit.py",
    "_lowering.py",
    "_numba.py",
    "compile.py",
    "hash.py",
    "reduce.py",
    "step.py",
    "table.py",
)

MARK = "kellet-kernels-sha256:"
_EMBEDDED = re.compile(MARK.encode() + rb"([0-9a-f]{64})\0")


def source_digest(folder: Path = FOLDER) -> str:
    """Return the SHA-256 of the sources, names included, as hexadecimal."""
    digest = hashlib.sha256()
    for name in SOURCES:
        content = (folder / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def library_path(machine: str = "", folder: Path = FOLDER) -> Path:
    """Return the library's path for a processor, by default this one's.

    It lies in a folder of its own, or Python would take it for an extension module.
    """
    return folder / "lib" / f"kellet_kernels-{machine or platform.machine()}.so"


def embedded_digest(library: Path) -> str:
    """Return the digest of the sources that the library was built from, or ""."""
    found = _EMBEDDED.search(library.read_bytes())
    return found[1].decode() if found else ""


def is_fresh(library: Path) -> bool:
    """Whether the library exists and was built from the sources above its folder."""
    return library.is_file() and embedded_digest(library) == source_digest(library.parents[1])


def system_linker(machine: str) -> list[str]:
    """Return the command of an installed linker for a processor, or nothing.

    LLVM's links for every processor; the system's own for this one.
    """
    names = ("ld.lld", "ld", "cc") if machine == platform.machine() else ("ld.lld",)
    return next(([name] for name in names if shutil.which(name)), [])
