"""The compiler: no undefined symbol, no fused arithmetic, one library that needs no other."""

import ctypes
import platform
import re
import shutil
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba.core import codegen
from support.foreign import objects as compiled

from kellet.kernels import _library, _symbols, compile
from kellet.kernels._link import link
from kellet.kernels.table import KERNELS
from kellet.kernels.targets import TARGETS

# x86: vfmadd231ps and kin; 64-bit ARM: fmadd, fmla and kin; 32-bit ARM: vfma, vfnms and kin.
FUSED = re.compile(r"\bv?fn?m(?:add|sub|la|ls)\w*|\bvfn?m[as]\b")

# These take each element's own way, or divide; sums of squares have eight lanes in small registers.
SCALAR = {"derived_delta_c", "limbs_to_float64", "linear_digest", "top_k"}
SCALAR |= {"squares_of_blocks", "sum_of_squares_f32", "sum_of_squares_f64"}


@pytest.fixture(scope="module")
def objects() -> dict[str, list[bytes]]:
    return {name: compiled(name, "generic").contents for name in _library.MACHINES}


def test_nothing_is_undefined(objects: dict[str, list[bytes]]) -> None:
    for contents in objects.values():
        undefined = {name for content in contents for name in _symbols.undefined_symbols(content)}
        # What joins the builds asks for them, and for nothing else.
        assert all(re.fullmatch(r"kellet_\w+_v[234]", name) for name in undefined)
        defined = {name for content in contents for name in _symbols.defined_symbols(content)}
        assert undefined <= defined
        assert {f"kellet_{kernel}" for kernel in KERNELS} <= defined


@pytest.mark.parametrize(
    ("name", "cpu", "vectors"),
    [
        ("x86_64", "x86-64-v2", "xmm"),
        ("x86_64", "x86-64-v3", "ymm"),
        ("x86_64", "x86-64-v4", "ymm"),
        ("aarch64", "", r"\.(4s|2d)"),
    ],
)
def test_code_is_vectorised_and_never_fused(name: str, cpu: str, vectors: str) -> None:
    target = TARGETS[name]
    build = next(build for build in target.builds if build.cpu == cpu)
    module, machine, kernels = compile.kernel_module(target, build)
    assert kernels == tuple(KERNELS)
    assembly = machine.emit_assembly(module)
    assert FUSED.findall(assembly) == []
    assert "fast" not in str(module)
    for kernel in set(KERNELS) - SCALAR:
        start = assembly.index(f"\nkellet_{kernel}{build.suffix}:")
        code = assembly[start : assembly.index(".size", start)]
        assert re.search(vectors, code), kernel


def test_fused_arithmetic_would_be_seen() -> None:
    for name, cpu in (("x86_64", "x86-64-v3"), ("aarch64", ""), ("cortex_m7", "cortex-m7")):
        machine = compile.machine_for(TARGETS[name], cpu)
        module = llvm.parse_assembly(
            f'target triple = "{machine.triple}"\n'
            "declare float @llvm.fma.f32(float, float, float)\n"
            "define float @f(float %a, float %b) {\n"
            "  %r = call float @llvm.fma.f32(float %a, float %b, float %a)\n"
            "  ret float %r\n}\n"
        )
        assert FUSED.findall(machine.emit_assembly(module)), name


def test_numba_is_itself_again(objects: dict[str, list[bytes]]) -> None:
    assert objects
    assert codegen.CPUCodeLibrary._optimize_functions.__qualname__.startswith("CPUCodeLibrary.")
    assert codegen.CPUCodeLibrary._optimize_final_module.__qualname__.startswith("CPUCodeLibrary.")


def test_the_same_sources_give_the_same_bytes(objects: dict[str, list[bytes]]) -> None:
    assert compile.compile_objects("aarch64").contents == objects["aarch64"]


def exported(library: Path) -> list[str]:
    return _symbols.defined_symbols(library.read_bytes())


@pytest.mark.parametrize("linker", ["ld", "cc", "ld.lld", "ziglang"])
def test_every_linker_makes_a_library_that_works(
    linker: str,
    objects: dict[str, list[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    if linker != "ziglang":
        found = shutil.which(linker)
        if not found:
            pytest.skip(f"no {linker} here")
        if linker == "cc":  # a driver finds its linker beside itself or on the PATH
            (tools / "cc").write_text(
                f'#!/bin/sh\nPATH={Path(found).parent}:/usr/bin exec {found} "$@"\n'
            )
            (tools / "cc").chmod(0o755)
        else:
            (tools / linker).symlink_to(found)
    monkeypatch.setenv("PATH", f"{tools}" if linker != "cc" else f"{tools}:/bin-of-nothing")
    assert _library.system_linker(platform.machine()) == ([] if linker == "ziglang" else [linker])

    library = _library.library_path(folder=tmp_path)
    machine = platform.machine()
    link(objects[machine], machine, library)
    names = {f"kellet_{kernel}" for kernel in KERNELS} | {"kellet_kernels_identity"}
    levels = {"kellet_level", "kellet_limit_level"} if machine == "x86_64" else set()
    assert names | levels <= set(exported(library))
    assert not any(re.search(r"_v[234]$", name) for name in exported(library))
    assert _symbols.undefined_symbols(library.read_bytes()) == []
    assert _library.identity("generic").encode() in library.read_bytes()
    assert list(library.parent.iterdir()) == [library]

    y, g = np.array([10, 20], np.float32), np.array([1, 2], np.float32)
    step = ctypes.CDLL(str(library)).kellet_sgd_step
    step.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_float, ctypes.c_int64]
    step.restype = None
    step(y.ctypes.data, g.ctypes.data, 0.5, 2)
    assert y.tolist() == [9.5, 19]


def test_another_processor_s_library_links_through_zig(
    objects: dict[str, list[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, elf_machine in (("x86_64", 62), ("aarch64", 183)):
        library = _library.library_path(name, tmp_path)
        link(objects[name], name, library)
        content = library.read_bytes()
        assert int.from_bytes(content[18:20], "little") == elf_machine
        assert _symbols.undefined_symbols(content) == []


def test_an_undefined_symbol_is_refused(tmp_path: Path) -> None:
    machine = compile.machine_for(TARGETS["x86_64"])
    module = llvm.parse_assembly(
        'target triple = "x86_64-unknown-linux-gnu"\n'
        "declare double @floor(double)\n"
        "define double @f(double %v) {\n  %r = call double @floor(double %v)\n"
        "  ret double %r\n}\n"
    )
    with pytest.raises(RuntimeError, match="undefined symbols: floor"):
        link([machine.emit_object(module)], "x86_64", tmp_path / "f.so")
    assert list(tmp_path.iterdir()) == []
