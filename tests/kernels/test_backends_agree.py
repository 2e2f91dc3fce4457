"""NumPy, Numba and the compiled library: the same bits, at every level of this processor."""

import ctypes
import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_inputs import arguments, parameters, run, same_bits, sizes

from kellet.kernels import _library
from kellet.kernels._backend import Backend, NumPyBackend
from kellet.kernels._compiled import CompiledBackend
from kellet.kernels._numba import NumbaBackend
from kellet.kernels.table import KERNELS

LENGTHS = (0, 1, 7, 8, 9, 1000, 1031, 4097)
# Of every machine: tests/targets holds the other processors to the reference.
GOLDEN = "41f1a97f9a836d438552512b2447523c3481dc6bcf3df26936350f397c64d65d"
REFERENCE, NUMBA, COMPILED = NumPyBackend(), NumbaBackend(), CompiledBackend()


def assert_agree(kernel: str, n: int, seed: int, *backends: object) -> None:
    for finite in (True, False):
        arrays, scalars = arguments(kernel, n, seed, finite=finite)
        result, after = run(REFERENCE, kernel, arrays, scalars)
        for backend in backends:
            its_result, its_after = run(backend, kernel, arrays, scalars)
            assert same_bits(result, its_result)
            assert all(map(same_bits, after, its_after))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("n", LENGTHS)
def test_backends_agree_on_every_length(kernel: str, n: int) -> None:
    for seed in range(2):
        assert_agree(kernel, n, seed, NUMBA, COMPILED)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(deadline=None, max_examples=40)
@given(n=st.integers(0, 70), seed=st.integers(0, 2**32))
def test_backends_agree_on_any_bits(kernel: str, n: int, seed: int) -> None:
    assert_agree(kernel, n, seed, NUMBA, COMPILED)


@pytest.fixture(params=[2, 3, 4])
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    if platform.machine() != "x86_64":
        pytest.skip("levels are x86-64's")
    library = ctypes.CDLL(str(_library.library_path()))
    best = library.kellet_limit_level(99)
    if request.param > best:
        pytest.skip(f"this processor is at level {best}")
    assert library.kellet_limit_level(request.param) == request.param
    yield request.param
    library.kellet_limit_level(best)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_level_gives_the_reference_bits(level: int, kernel: str) -> None:
    for n in LENGTHS:
        assert_agree(kernel, n, level, COMPILED)


def test_level_is_what_the_system_reports() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("levels are x86-64's")
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n")[0].split())
    v3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "abm"}
    v4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
    wanted = 2 + (v3 <= flags) + (v3 | v4 <= flags)
    assert ctypes.CDLL(str(_library.library_path())).kellet_level() == wanted


def portable_arguments(kernel: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Inputs that are the same on every machine: from a hash, through exact arithmetic alone."""
    signature = KERNELS[kernel]
    names = parameters(kernel)
    layout = np.array([3, 64, 20, 100, 1, 307, 1, 1], np.int64)  # 2500 elements
    lengths = sizes(kernel, 2500, layout)
    arrays = []
    for name, kind, size in zip(
        names, signature.arrays, signature.lengths or ["n"] * len(signature.arrays), strict=False
    ):
        raw = hashlib.shake_256(f"{kernel} {name}".encode()).digest(8 * lengths[size])
        integers = np.frombuffer(raw, "<u8" if kind == "u8" else "<i8").copy()
        # 24 bits below 8.0 are exact in float32.
        values = (integers >> 40) * 2.0**-20 if kind[0] == "f" else integers
        if name.endswith("scales"):
            values = np.abs(values) + 2.0**-10
        if name in ("layout", "counts"):
            values = layout if name == "layout" else np.zeros(lengths[size])
        arrays.append(values.astype(kind))
    scalars = {"f4": 0.1, "f8": 0.7, "i8": 12345, "u4": 0xCAFE}
    return tuple(arrays), tuple(
        lengths.get(name, scalars[kind])
        for name, kind in zip(names[len(arrays) :], signature.scalars, strict=True)
    )


@pytest.mark.parametrize("backend", [REFERENCE, NUMBA, COMPILED], ids=lambda b: b.name)
def test_results_are_the_same_on_every_machine(backend: Backend) -> None:
    digest = hashlib.sha256()
    for kernel in KERNELS:
        result, after = run(backend, kernel, *portable_arguments(kernel))
        digest.update(f"{kernel} {result!r}\n".encode())
        for array in after:
            digest.update(array.tobytes())
    assert digest.hexdigest() == GOLDEN


PLAIN_PYTHON = """
import numpy as np
from support.kernel_inputs import arguments, parameters, run, same_bits, sizes
from kellet.kernels import step
from kellet.kernels._backend import NumPyBackend
from kellet.kernels._numba import NumbaBackend
from kellet.kernels.table import KERNELS
assert not hasattr(step.sgd_step, "py_func"), "compiled after all"
np.seterr(all="ignore")
for kernel in KERNELS:
    for n in (0, 1, 9, 300):
        for finite in (True, False):
            given = arguments(kernel, n, n, finite=finite)
            result, after = run(NumPyBackend(), kernel, *given)
            its_result, its_after = run(NumbaBackend(), kernel, *given)
            assert same_bits(result, its_result), kernel
            assert all(map(same_bits, after, its_after)), kernel
print(len(KERNELS), "agree")
"""


def test_numba_sources_are_right_as_plain_python(request: pytest.FixtureRequest) -> None:
    path = os.pathsep.join([str(request.config.rootpath / "tests"), *filter(None, sys.path)])
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN_PYTHON],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{len(KERNELS)} agree\n", done.stderr
