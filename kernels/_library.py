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
    "SOURCES",
    "compiles_here",
    "identity",
    "is_fresh",
    "library_path",
    "source_digest",
    "system_linker",
]

MACHINES = ("aarch64", "x86_64")  # what platform.machine() says
FOLDER = Path(__file__).resolve().parent

# What decides the library's machine code.
SOURCES = (
    "_conversions.py",
    "_dispatch.py",
    "_jit.py",
    "_link.py",
    "_lowering.py",
    "_numba.py",
    "codec.py",
    "compile.py",
    "hash.py",
    "mask.py",
    "reduce.py",
    "resident.py",
    "rounding.py",
    "step.py",
    "table.py",
    "targets.py",
)

_IDENTITY = re.compile(rb"kellet-kernels-sha256:([0-9a-f]{64}) tuned-for:([\w-]+)\0")


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


def identity(cpu: str) -> str:
    """Return the text by which a library is known: the digest of its sources, its tuning."""
    return f"kellet-kernels-sha256:{source_digest()} tuned-for:{cpu}"


def is_fresh(library: Path, cpu: str | None = None) -> bool:
    """Whether the library exists and was built from the sources above its folder.

    ``cpu`` asks for the one tuned for that processor.
    """
    if not library.is_file():
        return False
    found = _IDENTITY.search(library.read_bytes())
    if not found or found[1].decode() != source_digest(library.parents[1]):
        return False
    return cpu in (None, found[2].decode())


def compiles_here(target: str) -> bool:
    """Whether this kind of machine compiles a target: all of them, but x86-64's on x86-64 alone.

    That one asks CPUID in inline assembly, and llvmlite has LLVM's reader of
    assembly for the machine's own processor only.
    """
    return target != "x86_64" or platform.machine() == "x86_64"


def system_linker(target: str) -> list[str]:
    """Return the command of an installed linker for a target, or nothing.

    LLVM's links for every processor; the system's own for this one.
    """
    names = ("ld.lld", "ld", "cc") if target == platform.machine() else ("ld.lld",)
    names = ("wasm-ld",) if target == "wasm32" else names
    return next(([name] for name in names if shutil.which(name)), [])
