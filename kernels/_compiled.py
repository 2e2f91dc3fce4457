"""The compiled library through ctypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["CompiledBackend"]


class CompiledBackend:
    """The library built from these kernels."""

    name = "compiled"

    def __init__(self) -> None:
        raise ImportError("the compiled library is not built")

    def bind(self, kernel: str, arrays: tuple[Any, ...]) -> Callable[..., Any]:
        raise NotImplementedError
