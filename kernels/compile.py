"""Build the compiled library: ``python -m kellet.kernels.compile``.

The device carries no compiler. The kernels' Python sources are lowered by
Numba, optimised by LLVM for the target, and linked into one library that
needs no other, not even libc. Run it as a process of its own: it switches
Numba's optimiser off while it works.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from kellet.kernels import _dispatch, _library, _lowering
from kellet.kernels._elf import defined_symbols, undefined_symbols
from kellet.kernels.table import KERNELS

__all__ = ["TARGETS", "Build", "Target", "compile_objects", "kernel_module", "link", "machine_for"]


class Build(NamedTuple):
    """One round of code generation: an LLVM processor name, and the suffix of its symbols."""

    cpu: str
    suffix: str = ""


class Target(NamedTuple):
    """What is built for the processors that ``platform.machine()`` calls by one name."""

    triple: str
    builds: tuple[Build, ...]


TARGETS = {
    "x86_64": Target(
        "x86_64-unknown-linux-gnu",
        tuple(Build(f"x86-64-v{level}", _dispatch.suffix(level)) for level in _dispatch.LEVELS),
    ),
    "aarch64": Target("aarch64-unknown-linux-gnu", (Build("generic"),)),
}


def machine_for(triple: str, cpu: str = "") -> Any:
    """Return an LLVM target machine that makes position-independent code."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, opt=3, reloc="pic", codemodel="default"
    )


def kernel_module(target: Target, build: Build) -> tuple[Any, Any]:
    """Return the optimised module of all kernels for one build, and its target machine."""
    machine = machine_for(target.triple, build.cpu)
    whole = llvm.parse_assembly(_header(machine))
    for kernel in KERNELS:
        name = f"kellet_{kernel}{build.suffix}"
        module = _lowering.lower(kernel, name, machine)
        if build.suffix:
            module.get_function(name).visibility = "hidden"
        whole.link_in(module)
    _lowering.optimise(whole, machine)
    return whole, machine


def compile_objects(name: str) -> list[bytes]:
    """Return the object files of a target of ``TARGETS``: the kernels, and what joins them."""
    target = TARGETS[name]
    objects = []
    for build in target.builds:
        module, machine = kernel_module(target, build)
        objects.append(machine.emit_object(module))
    machine = machine_for(target.triple)
    text = _header(machine) + _identity()
    if any(build.suffix for build in target.builds):
        signatures = {f"kellet_{kernel}": _lowering.c_signature(kernel) for kernel in KERNELS}
        text += _dispatch.x86_dispatch(signatures)
    module = llvm.parse_assembly(text)
    module.verify()
    _lowering.optimise(module, machine)
    objects.append(machine.emit_object(module))
    return objects


def _header(machine: Any) -> str:
    return f'target triple = "{machine.triple}"\ntarget datalayout = "{machine.target_data}"\n'


def _identity() -> str:
    """Return the IR of the constant by which a stale library is known."""
    text = _library.MARK + _library.source_digest()
    return f'@kellet_kernels_digest = constant [{len(text) + 1} x i8] c"{text}\\00"\n'


def link(objects: list[bytes], machine: str, library: Path) -> None:
    """Write the shared library, whole or not at all.

    Raises RuntimeError where a symbol stays undefined, no linker is there, or
    the linker fails.
    """
    defined = {name for content in objects for name in defined_symbols(content)}
    wanted = {name for content in objects for name in undefined_symbols(content)}
    if wanted - defined:
        raise RuntimeError(f"undefined symbols: {', '.join(sorted(wanted - defined))}")
    linker = _library.system_linker(machine)
    if not linker and importlib.util.find_spec("ziglang"):
        linker = [sys.executable, "-m", "ziglang", "ld.lld"]
    if not linker:
        raise RuntimeError(f"no linker for {machine}; pip install ziglang")
    flags = ["-shared", "-nostdlib"]
    passed = ["--build-id=none", "-s", "-z", "noexecstack"]
    flags += [f"-Wl,{','.join(passed)}"] if linker[0] == "cc" else passed
    library.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".link-") as folder:
        paths = [Path(folder, f"{i}.o") for i in range(len(objects))]
        for path, content in zip(paths, objects, strict=True):
            path.write_bytes(content)
        linked = Path(folder, library.name)
        done = subprocess.run(
            [*linker, *flags, "-o", linked, *paths], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{linker[-1]} failed: {done.stderr.strip()}")
        linked.chmod(0o755)
        linked.replace(library)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--machine", choices=sorted(TARGETS), default=platform.machine())
    parser.add_argument("--out", type=Path, help="the library to write, by default in the package")
    options = parser.parse_args()
    library = options.out or _library.library_path(options.machine)
    link(compile_objects(options.machine), options.machine, library)
    return 0


if __name__ == "__main__":
    sys.exit(main())
