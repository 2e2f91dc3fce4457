"""The machine's own limit, and a kernel without its call.

STREAM's copy and triad (McCalpin 1995) are loops of the kernels' own kind: the
same compiler for the same processor, the same threads, arrays aligned alike.
Without Numba they are NumPy's, which needs two passes for a triad.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from bench.case import Case
from bench.operands import Operands
from kellet import kernels
from kellet.kernels import _library, _threads

__all__ = ["ALLOCATED", "BYTES", "MADE_BY", "alone", "limits"]

# Bytes an element as STREAM counts them. What is written without having been read is in
# truth read as well (write-allocate): 12 and 16. A step in place does not pay that.
BYTES = {"copy": 8, "triad": 12}
ALLOCATED = {"copy": 12, "triad": 16}

LONGEST_ALONE = 100_000  # beyond, a call costs nothing beside the arithmetic

_FACTOR = np.float32(3)

try:
    from kellet.kernels._jit import jit

    MADE_BY = "numba"

    @jit
    def _copy(a: Any, b: Any) -> None:
        for i in range(a.size):
            a[i] = b[i]

    @jit
    def _triad(a: Any, b: Any, c: Any) -> None:
        for i in range(a.size):
            a[i] = b[i] + _FACTOR * c[i]

except ImportError:
    MADE_BY = "numpy"

    def _copy(a: Any, b: Any) -> None:
        np.copyto(a, b)

    def _triad(a: Any, b: Any, c: Any) -> None:
        np.multiply(c, _FACTOR, out=a)
        np.add(a, b, out=a)


def limits(n: int) -> dict[str, Callable[[], Any]]:
    """Return the calls that copy and triad vectors of n float32."""
    a, b, c = (kernels.aligned(n) for _ in range(3))
    b[:], c[:] = 1, 2
    _triad(a, b, c)
    if not (a == 7).all():
        raise AssertionError("triad computes something else")
    _copy(a, b)
    if not (a == 1).all():
        raise AssertionError("copy computes something else")
    return {"copy": _cut(_copy, a, b), "triad": _cut(_triad, a, b, c)}


def _cut(loop: Callable[..., None], *arrays: Any) -> Callable[[], Any]:
    """Use the threads that the kernels use, where they use them."""
    if arrays[0].size < _threads.SHORTEST:
        return lambda: loop(*arrays)

    def piece(start: int, stop: int) -> Callable[[], None]:
        part = tuple(array[start:stop] for array in arrays)
        return lambda: loop(*part)

    def cut(count: int) -> list[Callable[[], None]]:
        return [piece(*ends) for ends in pairwise(_threads.cuts(arrays[0].size, 64, count))]

    return _threads.in_pieces(lambda: loop(*arrays), cut)


def alone(case: Case, operands: Operands) -> Callable[[int], None] | None:
    """Return ``run(count)``: the library's own function in a compiled loop, called without Python.

    A bound step takes its time and the call's. None where that cannot be: another backend, no
    Numba, or a case that is no float32 step.
    """
    if (
        not case.bound
        or operands["y"].size > LONGEST_ALONE
        or kernels.backend() != "compiled"
        or MADE_BY != "numba"
    ):
        return None
    import numba

    function = ctypes.CDLL(str(_library.library_path()))[f"kellet_{case.name}"]
    rates = [np.float32(operands["lr"])]
    if case.name.startswith("prox"):
        rates.append(np.float32(0.1))
    pointers = [ctypes.c_void_p] * len(case.bound)
    function.argtypes = [*pointers, *[ctypes.c_float] * len(rates), ctypes.c_int64]
    function.restype = None
    arrays = [operands[name] for name in case.bound]
    # Numba wants a function of so many arguments: it is written out.
    names, rate_names = [f"a{i}" for i in range(len(arrays))], [f"r{i}" for i in range(len(rates))]
    passed = ", ".join([*(f"{name}.ctypes" for name in names), *rate_names, "n"])
    source = (
        f"def loop(count, n, {', '.join(names + rate_names)}):\n"
        f"    for _ in range(count):\n        function({passed})\n"
    )
    scope: dict[str, Any] = {"function": function}
    exec(source, scope)
    loop = numba.njit(scope["loop"])

    def run(count: int) -> None:
        loop(count, arrays[0].size, *arrays, *rates)

    return run
