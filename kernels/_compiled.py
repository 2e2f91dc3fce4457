"""The compiled library, through ctypes: a call costs about a microsecond."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from typing import Any

from kellet.kernels import _library
from kellet.kernels.table import KERNELS

__all__ = ["CompiledBackend"]

_LOWEST_LEVEL = 2
_BUILD = "python -m kellet.kernels.compile builds it (pip install numba)"


def _c_type(kind: str) -> Any:
    if kind in ("", "f4", "f8"):
        return {"": None, "f4": ctypes.c_float, "f8": ctypes.c_double}[kind]
    return getattr(ctypes, f"c_{'u' if kind[0] == 'u' else ''}int{8 * int(kind[1])}")


class CompiledBackend:
    """The library that was built from these very sources; ImportError where there is none."""

    name = "compiled"

    def __init__(self) -> None:
        path = _library.library_path()
        if not path.is_file():
            raise ImportError(f"{path.name} is not built; {_BUILD}")
        if not _library.is_fresh(path):
            raise ImportError(f"{path.name} is older than its sources; {_BUILD}")
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(f"{path.name} does not load: {error}") from error
        if platform.machine() == "x86_64" and library.kellet_level() < _LOWEST_LEVEL:
            raise ImportError(f"{path.name} needs an x86-64-v{_LOWEST_LEVEL} processor")
        self._functions: dict[str, Any] = {}
        for kernel, signature in KERNELS.items():
            function = library[f"kellet_{kernel}"]
            function.restype = _c_type(signature.result)
            pointers = [ctypes.c_void_p] * len(signature.arrays)
            scalars = [_c_type(kind) for kind in signature.scalars]
            function.argtypes = [*pointers, *scalars, ctypes.c_int64]
            self._functions[kernel] = function

    def bind(self, kernel: str, arrays: tuple[Any, ...]) -> Callable[..., Any]:
        function = self._functions[kernel]
        pointers = [ctypes.c_void_p(array.__array_interface__["data"][0]) for array in arrays]
        length = ctypes.c_int64(arrays[0].size)

        # The pointers own nothing: the default keeps the arrays for as long as the step.
        def run(*scalars: float, _alive: Any = arrays) -> Any:
            return function(*pointers, *scalars, length)

        return run
