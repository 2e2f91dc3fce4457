"""Which backend computes: the compiled library, else NumPy; Numba when it is asked for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from kellet.kernels import reference
from kellet.kernels.table import KERNELS

__all__ = ["NAMES", "Backend", "NumPyBackend", "active", "backend", "scalar_types", "use_backend"]

NAMES = ("compiled", "numba", "numpy")
_SCALARS: dict[str, type[np.generic]] = {
    "f4": np.float32,
    "f8": np.float64,
    "i8": np.int64,
    "u4": np.uint32,
}


class Backend(Protocol):
    """One implementation of every kernel in the table."""

    name: str

    def bind(self, kernel: str, arrays: tuple[Any, ...]) -> Callable[..., Any]:
        """Return ``f(*scalars)`` that runs the kernel on these arrays, which it keeps alive."""
        ...


def scalar_types(kernel: str) -> tuple[type[np.generic], ...]:
    """NumPy types of a kernel's scalar arguments."""
    return tuple(_SCALARS[kind] for kind in KERNELS[kernel].scalars)


class NumPyBackend:
    """The reference itself."""

    name = "numpy"

    def bind(self, kernel: str, arrays: tuple[Any, ...]) -> Callable[..., Any]:
        function = getattr(reference, KERNELS[kernel].function)
        types = scalar_types(kernel)

        def run(*scalars: float) -> Any:
            typed = [kind(value) for kind, value in zip(types, scalars, strict=True)]
            # Overflow and NaN are results like any other, as in the other backends.
            with np.errstate(all="ignore"):
                return function(*arrays, *typed)

        return run


_active: Backend | None = None


def active() -> Backend:
    """Return the backend in use, choosing it at the first call."""
    if _active is None:
        _choose()
    assert _active is not None
    return _active


def backend() -> str:
    """Return the name of the backend in use: ``"compiled"``, ``"numba"`` or ``"numpy"``."""
    return active().name


def use_backend(name: str) -> None:
    """Compute with this backend from now on; steps that are already bound keep theirs.

    Raises ValueError for a name that is none of ``"compiled"``, ``"numba"``,
    ``"numpy"``, and ImportError where that backend is not installed.
    """
    global _active  # noqa: PLW0603
    _active = _open(name)


def _choose() -> None:
    asked = os.environ.get("KELLET_KERNELS")
    if asked:
        if asked not in NAMES:
            raise ValueError(f"KELLET_KERNELS must be one of {', '.join(NAMES)}, not {asked!r}")
        use_backend(asked)
        return
    try:
        use_backend("compiled")
    except ImportError as reason:
        warnings.warn(
            f"kellet.kernels computes with NumPy, which is slower: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
        use_backend("numpy")


def _open(name: str) -> Backend:
    if name == "numpy":
        return NumPyBackend()
    if name == "numba":
        try:
            from kellet.kernels._numba import NumbaBackend
        except ModuleNotFoundError as error:
            raise ImportError(f'{error}; pip install "kellet[jit]"') from error
        return NumbaBackend()
    if name == "compiled":
        from kellet.kernels._compiled import CompiledBackend

        return CompiledBackend()
    raise ValueError(f"backend must be one of {', '.join(NAMES)}, not {name!r}")
