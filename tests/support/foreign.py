"""Running a target's kernels where Python does not: a C program under an emulator, or Node.

A batch of calls is one run of bytes, little-endian and in steps of 8: a word
for the x86-64 level, then for each call the kernel's number, n, a word a
scalar, a word for the result, and for each array its length in bytes and its
elements. The program computes in place and gives all bytes back.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from support.kernel_inputs import arguments, clear_room, run, same_bits

from kellet.kernels._backend import NumPyBackend
from kellet.kernels._link import link
from kellet.kernels.compile import compile_objects
from kellet.kernels.header import c_header, c_type
from kellet.kernels.table import KERNELS
from kellet.kernels.targets import ANY

__all__ = [
    "Call",
    "Program",
    "build_module",
    "build_runner",
    "calls",
    "check",
    "level_of",
    "objects",
    "pack",
    "tool",
]

objects = cache(compile_objects)  # several tests want the same ones
_REFERENCE = NumPyBackend()


class Call(NamedTuple):
    """One call of a kernel, and what the reference makes of it."""

    kernel: str
    arrays: tuple[Any, ...]
    scalars: tuple[Any, ...]
    result: Any
    after: tuple[Any, ...]


def calls(kernels: Iterable[str], lengths: Iterable[int], seeds: Iterable[int]) -> list[Call]:
    """Return calls with inputs of every sort, and their answers."""
    made = []
    for kernel in kernels:
        for n in lengths:
            for seed in seeds:
                for finite in (True, False):
                    arrays, scalars = arguments(kernel, n, seed, finite=finite)
                    made.append(
                        Call(kernel, arrays, scalars, *run(_REFERENCE, kernel, arrays, scalars))
                    )
    return made


def tool(name: str) -> str:
    """Return the path of an emulator or engine, or skip the test where it is not installed."""
    found = shutil.which(name)
    if not found:
        package = "nodejs" if name == "node" else "qemu-user-static"
        pytest.skip(f"{name} is not installed (Debian: apt-get install {package})")
    return found


def _word(kind: str, value: Any) -> bytes:
    return np.asarray(value, kind or "i8").tobytes().ljust(8, b"\0")


def pack(batch: Sequence[Call], numbers: Sequence[str]) -> bytes:
    """Return the bytes of a batch; ``numbers`` gives the kernels in the program's order."""
    parts = [_word("i8", 0)]
    for kernel, arrays, scalars, _, _ in batch:
        kinds = KERNELS[kernel].scalars
        parts += [_word("i8", numbers.index(kernel)), _word("i8", arrays[0].size)]
        parts += [_word(kind, value) for kind, value in zip(kinds, scalars, strict=True)]
        parts.append(_word("i8", 0))
        for array in arrays:
            content = array.tobytes()
            parts += [_word("i8", len(content)), content, bytes(-len(content) % 8)]
    return b"".join(parts)


def check(batch: Sequence[Call], answer: bytes) -> None:
    """Compare a program's answer with the reference's, bit by bit."""
    at = 8
    for kernel, arrays, scalars, result, after in batch:
        signature = KERNELS[kernel]
        at += 16 + 8 * len(scalars)
        if signature.result:
            value = np.frombuffer(answer, signature.result, 1, at)[0]
            assert same_bits(value, np.asarray(result, signature.result)), kernel
        at += 8
        given_arrays = []
        for array in arrays:
            given_arrays.append(np.frombuffer(answer, array.dtype, array.size, at + 8).copy())
            at += 8 + array.nbytes + -array.nbytes % 8
        clear_room(kernel, tuple(given_arrays))
        for i, given in enumerate(given_arrays):
            assert same_bits(given, after[i]), f"{kernel}: array {i} of {given.size}"
    assert at == len(answer)


def _calls_in_c(kernels: Sequence[str]) -> str:
    counts, cases = "", ""
    for number, kernel in enumerate(kernels):
        signature = KERNELS[kernel]
        counts += f"  {{{len(signature.scalars)}, {len(signature.arrays)}}},\n"
        given = [f"({c_type(kind)} *)a[{i}]" for i, kind in enumerate(signature.arrays)]
        given += [f"*({c_type(kind)} *)(s + {8 * i})" for i, kind in enumerate(signature.scalars)]
        result = f"*({c_type(signature.result)} *)result = " if signature.result else ""
        called = f"{result}kellet_{kernel}({', '.join([*given, 'n'])})"
        cases += f"  case {number}: {called}; break;\n"
    head = "static void call(int64_t kernel, int64_t n, char *s, char **a, char *result)"
    return f"""
static const int counts[][2] = {{
{counts}}};

{head} {{
  switch (kernel) {{
{cases}  }}
}}
"""


class Program(NamedTuple):
    """A command that runs a batch, and the kernels in its order."""

    command: tuple[object, ...]
    kernels: tuple[str, ...]

    def under(self, *emulator: str) -> Program:
        """Return it as run by an emulator."""
        return self._replace(command=(*emulator, *self.command))

    def answer(self, batch: Sequence[Call]) -> bytes:
        """Run the calls of the kernels that it has, and return its answer."""
        done = subprocess.run(
            [str(part) for part in self.command],
            input=pack(self.held(batch), self.kernels),
            capture_output=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr.decode()}"
        return done.stdout

    def held(self, batch: Sequence[Call]) -> list[Call]:
        return [call for call in batch if call.kernel in self.kernels]

    def check(self, batch: Sequence[Call]) -> None:
        """Compare its answer with the reference's."""
        check(self.held(batch), self.answer(batch))


def build_runner(target: str, folder: Path, *options: str, cpu: str = ANY) -> Program:
    """Link a target's objects to a program that needs no library."""
    contents, kernels = objects(target, cpu)
    (folder / "kernels.h").write_text(c_header(target, kernels))
    (folder / "calls.h").write_text(_calls_in_c(kernels))
    for i, content in enumerate(contents):
        (folder / f"{i}.o").write_bytes(content)
    program = folder / "runner"
    # Nothing may bring in a library, or turn a loop into a call of one.
    alone = ["-ffreestanding", "-fno-builtin", "-fno-sanitize=all", "-fno-stack-protector"]
    alone += ["-nostdlib", "-static"]
    compiler = [sys.executable, "-m", "ziglang", "cc", *options, "-O1", *alone]
    files = [Path(__file__).with_name("runner.c"), *sorted(folder.glob("*.o"))]
    subprocess.run([*compiler, "-I", folder, "-o", program, *files], check=True)
    return Program((program,), kernels)


def build_module(folder: Path) -> Program:
    """Link the WebAssembly module; what runs it gets the table, as it reads no header."""
    contents, kernels = objects("wasm32", ANY)
    module = folder / "kernels.wasm"
    link(contents, "wasm32", module)
    table = json.dumps({kernel: KERNELS[kernel]._asdict() for kernel in kernels})
    script = Path(__file__).with_name("run_module.mjs")
    return Program((tool("node"), script, module, table), kernels)


def level_of(answer: bytes) -> int:
    """Return the x86-64 level that a program found."""
    return int(struct.unpack_from("<q", answer)[0])
