"""The Numba backend: the kernels' sources compiled for this processor while the program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kellet.kernels import codec, mask, reduce, resident, step
from kellet.kernels._backend import scalar_types
from kellet.kernels.table import KERNELS

__all__ = ["NumbaBackend", "source"]


def source(kernel: str) -> Callable[..., Any]:
    """Return the function, as Numba wraps it, that computes a kernel of the table."""
    name = KERNELS[kernel].function
    modules = (step, resident, codec, reduce, mask)
    module = next(module for module in modules if name in module.__all__)
    return getattr(module, name)  # type: ignore[no-any-return]


class NumbaBackend:
    """Compiles each kernel at its first call, which takes about a second."""

    name = "numba"

    def bind(self, kernel: str, arrays: tuple[Any, ...]) -> Callable[..., Any]:
        function = source(kernel)
        types = scalar_types(kernel)

        def run(*scalars: float) -> Any:
            typed = [kind(value) for kind, value in zip(types, scalars, strict=True)]
            return function(*arrays, *typed)

        return run
