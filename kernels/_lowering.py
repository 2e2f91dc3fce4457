"""From a kernel's Python source to LLVM IR with a C signature, on the way to any processor.

Numba optimises for the machine it runs on. Here its optimiser is switched
off while it lowers, and LLVM optimises once, for the target.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from numba.core import codegen, compiler, types
from numba.core.registry import cpu_target

from kellet.kernels._numba import source
from kellet.kernels.table import KERNELS
from kellet.kernels.targets import ANY

__all__ = ["c_signature", "lower", "optimise"]

_PLAIN_NAME = re.compile(r"[\w.$]+")
_DEFINITION = re.compile(r"^(define .*) \{$", re.MULTILINE)


def _numba_type(kind: str) -> Any:
    family = {"f": "float", "i": "int", "u": "uint"}[kind[0]]
    return getattr(types, f"{family}{8 * int(kind[1])}")


def _llvm_type(kind: str) -> str:
    return {"": "void", "f4": "float", "f8": "double"}.get(kind) or f"i{8 * int(kind[1])}"


@contextmanager
def _unoptimised() -> Iterator[None]:
    """Keep Numba's IR raw meanwhile. What Numba caches of it stays slow: hence a process apart."""
    library = codegen.CPUCodeLibrary
    saved = library._optimize_functions, library._optimize_final_module
    library._optimize_functions = lambda self, module: None
    library._optimize_final_module = lambda self: None
    try:
        yield
    finally:
        library._optimize_functions, library._optimize_final_module = saved


@cache
def _numba_ir(kernel: str) -> tuple[str, str]:
    """Return the name of Numba's function and its IR, the same for every target but two lines."""
    signature = KERNELS[kernel]
    arguments = [types.Array(_numba_type(kind), 1, "C") for kind in signature.arrays]
    arguments += [_numba_type(kind) for kind in signature.scalars]
    flags = compiler.Flags()
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.nrt = False
    flags.noalias = True
    flags.error_model = "numpy"
    result = _numba_type(signature.result) if signature.result else types.void
    with _unoptimised():
        compiled = compiler.compile_extra(
            cpu_target.typing_context,
            cpu_target.target_context,
            source(kernel).py_func,  # type: ignore[attr-defined]
            tuple(arguments),
            result,
            flags,
            {},
        )
        text = compiled.library.get_llvm_str()
    name = compiled.fndesc.llvm_func_name
    if not _PLAIN_NAME.fullmatch(name):
        name = f'"{name}"'
    # Numba's environment objects serve its Python side; here nothing reads them.
    text = re.sub(
        r"(@_ZN08NumbaEnv\S*) = common (?:local_unnamed_addr )?global",
        r"\1 = internal global",
        text,
    )
    return name, text


def lower(kernel: str, symbol: str, machine: Any, *, tune: str = ANY, section: str = "") -> Any:
    """Return an unoptimised LLVM module whose only visible function is ``symbol``.

    Its C parameters are a pointer an array, the scalars, and the length of the
    first array as a 64-bit integer; see ``c_signature``. ``tune`` names the
    processor whose pipeline the code is laid out for, out of the instructions
    that the target machine has; ``section`` is where a linker finds, or drops,
    the function.
    """
    name, text = _numba_ir(kernel)
    text = re.sub(r'target triple = ".*"', f'target triple = "{machine.triple}"', text)
    text = re.sub(r'target datalayout = ".*"', f'target datalayout = "{machine.target_data}"', text)
    # Without "no-builtins" a loop that fills or copies would become a call of libc's function.
    # Nothing here is unwound: no tables for it.
    attributes = 'nounwind "no-builtins"'
    if KERNELS[kernel].wide:
        attributes += ' "prefer-vector-width"="512"'  # else LLVM stays at 256, for old processors
    if tune != ANY:
        attributes += f' "tune-cpu"="{tune}"'
    if section:
        attributes += f' section "{section}"'
    text = _DEFINITION.sub(rf"\1 {attributes} {{", text + _c_function(kernel, symbol, name))
    module = llvm.parse_assembly(text)
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    module.verify()
    return module


def c_signature(kernel: str) -> tuple[str, str, str]:
    """Return a kernel's C result, parameters and the parameters' names, in LLVM's notation."""
    signature = KERNELS[kernel]
    named = [("ptr noalias", f"%a{i}") for i in range(len(signature.arrays))]
    named += [(_llvm_type(kind), f"%s{i}") for i, kind in enumerate(signature.scalars)]
    named.append(("i64", "%n"))
    parameters = ", ".join(f"{kind} {name}" for kind, name in named)
    passed = ", ".join(f"{kind.split()[0]} {name}" for kind, name in named)
    return _llvm_type(signature.result), parameters, passed


def _c_function(kernel: str, symbol: str, target: str) -> str:
    """Return a function of C's calling convention around Numba's.

    Numba passes a result pointer, an exception pointer, and for each array:
    two owners (none), length, element size, data, shape and stride.
    """
    signature = KERNELS[kernel]
    result, parameters, _ = c_signature(kernel)
    slot = "ptr" if result == "void" else result
    arguments = ["ptr %result", "ptr %exception"]
    for i, kind in enumerate(signature.arrays):
        size = int(kind[1])
        arguments += ["ptr null", "ptr null", "i64 %n", f"i64 {size}"]
        arguments += [f"ptr %a{i}", "i64 %n", f"i64 {size}"]
    arguments += [f"{_llvm_type(kind)} %s{i}" for i, kind in enumerate(signature.scalars)]
    end = "ret void"
    if result != "void":
        end = f"%value = load {result}, ptr %result\n  ret {result} %value"
    return f"""
define {result} @{symbol}({parameters}) {{
  %result = alloca {slot}
  %exception = alloca ptr
  %status = call i32 @{target}({", ".join(arguments)})
  {end}
}}
"""


def optimise(module: Any, machine: Any) -> None:
    """Optimise for the target, twice: the first round inlines what the second one vectorises.

    No pass may change a result: nothing here permits reassociation or
    contraction, and LLVM fuses only where the IR says so.
    """
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = True
    options.loop_unrolling = True
    for _ in range(2):
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
