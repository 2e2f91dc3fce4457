"""Build the compiled kernels: ``python -m kellet.kernels.compile``.

The device carries no compiler. The kernels' Python sources are lowered by
Numba, optimised by LLVM for the target, and linked into one file that needs no
other, not even libc. Run it as a process of its own: it switches Numba's
optimiser off while it works.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from kellet.kernels import _dispatch, _library, _lowering
from kellet.kernels._conversions import ARM_CONVERSIONS
from kellet.kernels._link import link
from kellet.kernels.header import c_header
from kellet.kernels.table import KERNELS
from kellet.kernels.targets import ANY, TARGETS, Build, Target

__all__ = ["Objects", "compile_objects", "kernel_module", "machine_for"]

_DOUBLE = re.compile(r"\bdouble\b")


class Objects(NamedTuple):
    """What a target's library is linked from: object files, and the kernels in them by name."""

    contents: list[bytes]
    kernels: tuple[str, ...]


def machine_for(target: Target, cpu: str = "") -> Any:
    """Return LLVM's target machine for a target, and for a processor of its builds."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=cpu,
        features=target.features,
        opt=3,
        reloc="pic" if target.position_independent else "static",
        codemodel="default",
    )


def kernel_module(
    target: Target, build: Build, tune: str = ANY
) -> tuple[Any, Any, tuple[str, ...]]:
    """Return one build's optimised module, its target machine, and the kernels in the module.

    Left out are the kernels that compute in double precision where the target
    has none: there each operation would be a call of a library.
    """
    machine = machine_for(target, build.cpu)
    whole = llvm.parse_assembly(_header(machine))
    kernels = []
    for kernel in KERNELS:
        name = f"kellet_{kernel}{build.suffix}"
        section = f".text.{name}" if target.triple.startswith("thumb") else ""
        module = _lowering.lower(kernel, name, machine, tune=tune, section=section)
        if not target.doubles and _computes_in_double(module, machine):
            continue
        if build.suffix:
            module.get_function(name).visibility = "hidden"
        whole.link_in(module)
        kernels.append(kernel)
    _lowering.optimise(whole, machine)
    if target.own_conversions:
        _add_conversions(whole, machine)
    return whole, machine, tuple(kernels)


def _computes_in_double(module: Any, machine: Any) -> bool:
    """Whether double precision is left when the optimiser is through."""
    copy = module.clone()
    _lowering.optimise(copy, machine)
    return bool(_DOUBLE.search(str(copy)))


def _add_conversions(module: Any, machine: Any) -> None:
    """Add what instruction selection will call, after the optimiser could find it unused."""
    added = llvm.parse_assembly(_header(machine) + ARM_CONVERSIONS)
    added.verify()
    names = [function.name for function in added.functions if not function.is_declaration]
    _lowering.optimise(added, machine)
    module.link_in(added)
    for name in names:
        module.get_function(name).linkage = "internal"


def compile_objects(name: str, cpu: str = ANY) -> Objects:
    """Return the object files of a target of ``TARGETS``: the kernels, and what joins them.

    ``cpu`` is one of the target's tunings; its other processors run the same
    code, with the same result. Raises ValueError for another, and where this
    machine cannot compile the target.
    """
    target = TARGETS[name]
    if not _library.compiles_here(name):
        raise ValueError(f"{name} is compiled on {name} alone, and this is {platform.machine()}")
    if cpu not in target.tunings:  # LLVM would say so and go on
        raise ValueError(f"cpu for {name} must be one of {', '.join(target.tunings)}, not {cpu}")
    contents, text = [], _identity(cpu)
    for build in target.builds:
        module, machine, kernels = kernel_module(target, build, cpu)
        if not build.suffix:
            module.link_in(llvm.parse_assembly(_header(machine) + text))
        contents.append(machine.emit_object(module))
    if any(build.suffix for build in target.builds):
        signatures = {f"kellet_{kernel}": _lowering.c_signature(kernel) for kernel in kernels}
        machine = machine_for(target)
        module = llvm.parse_assembly(_header(machine) + text + _dispatch.x86_dispatch(signatures))
        module.verify()
        _lowering.optimise(module, machine)
        contents.append(machine.emit_object(module))
    return Objects(contents, kernels)


def _header(machine: Any) -> str:
    return f'target triple = "{machine.triple}"\ntarget datalayout = "{machine.target_data}"\n'


def _identity(cpu: str) -> str:
    """Return the IR of the constant by which a stale library is known."""
    text = _library.identity(cpu)
    return f'@kellet_kernels_identity = constant [{len(text) + 1} x i8] c"{text}\\00"\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--target", choices=sorted(TARGETS), default=platform.machine())
    parser.add_argument("--cpu", default=ANY, help="the processor to tune for, as LLVM calls it")
    parser.add_argument("--out", type=Path, help="the file to write, by default in the package")
    parser.add_argument("--header", type=Path, help="write the C header of this target here")
    options = parser.parse_args()
    if options.target not in TARGETS:  # this machine's name
        parser.error(f"there are no kernels for {options.target}: name a --target")
    target = TARGETS[options.target]
    if not options.out and options.target not in _library.MACHINES:
        parser.error(f"--out is needed for {options.target}: this package loads no such file")
    out = options.out or _library.library_path(options.target)
    if out.suffix not in target.suffixes():
        allowed = " or ".join(target.suffixes())
        parser.error(f"--out for {options.target} must end in {allowed}: {out}")
    try:
        objects = compile_objects(options.target, options.cpu)
    except ValueError as error:
        parser.error(str(error))
    link(objects.contents, options.target, out)
    if options.header:
        options.header.write_text(c_header(options.target, objects.kernels), encoding="utf-8")
    left_out = [kernel for kernel in KERNELS if kernel not in objects.kernels]
    if left_out:
        print(f"left out, as they compute in double precision: {', '.join(left_out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
