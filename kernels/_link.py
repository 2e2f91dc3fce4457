"""From object files to the one file that a target wants, whole or not at all."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kellet.kernels import _library
from kellet.kernels._symbols import defined_symbols, undefined_symbols
from kellet.kernels.targets import TARGETS

__all__ = ["link"]

_TOOLS = {"library": "ld.lld", "module": "wasm-ld"}  # of those that zig carries


def link(objects: Sequence[bytes], target: str, to: Path) -> None:
    """Write the shared library or the module of a target, or for ``*.o`` its only object.

    Raises ValueError for an object out of several, and RuntimeError where a
    symbol stays undefined, no linker is there, or the linker fails.
    """
    if to.suffix == ".o" and len(objects) > 1:
        raise ValueError(f"{target} is {len(objects)} objects and not one")
    defined = {name for content in objects for name in defined_symbols(content)}
    wanted = {name for content in objects for name in undefined_symbols(content)}
    if wanted - defined:
        raise RuntimeError(f"undefined symbols: {', '.join(sorted(wanted - defined))}")
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".link-") as folder:
        paths = [Path(folder, f"{i}.o") for i in range(len(objects))]
        for path, content in zip(paths, objects, strict=True):
            path.write_bytes(content)
        made = paths[0] if to.suffix == ".o" else _linked(paths, target, Path(folder, to.name))
        made.chmod(0o755 if to.suffix == ".so" else 0o644)
        made.replace(to)


def _linked(objects: list[Path], target: str, to: Path) -> Path:
    tool = _TOOLS[TARGETS[target].form]
    linker = _library.system_linker(target)
    if not linker and importlib.util.find_spec("ziglang"):
        linker = [sys.executable, "-m", "ziglang", tool]
    if not linker:
        raise RuntimeError(f"no linker for {target}; pip install ziglang")
    if tool == "wasm-ld":
        flags = ["--no-entry", "--export-dynamic", "--export=__heap_base", "--strip-all"]
    else:
        flags = ["-shared", "-nostdlib"]
        # Code and constants may share a page: separate ones would be 8 KB of zeros.
        passed = ["--build-id=none", "-s", "-z", "noexecstack", "-z", "noseparate-code"]
        if "android" in TARGETS[target].triple:
            passed += ["-soname", to.name]  # its tools would note the path instead
        flags += [f"-Wl,{','.join(passed)}"] if linker[0] == "cc" else passed
    done = subprocess.run(
        [*linker, *flags, "-o", to, *objects], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{linker[-1]} failed: {done.stderr.strip()}")
    return to
