"""Numba's compiler, set to the numeric contract: no fast-math, IEEE division by zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

__all__ = ["inlined", "jit"]

P = ParamSpec("P")
R = TypeVar("R")


def jit(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a kernel at its first call."""
    return cast("Callable[P, R]", numba.njit(error_model="numpy", nogil=True)(function))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Make a helper that becomes part of each kernel that calls it."""
    return cast("Callable[P, R]", numba.njit(error_model="numpy", inline="always")(function))
