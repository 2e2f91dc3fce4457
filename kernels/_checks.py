"""What the public functions refuse, in one place: nothing is written before these have passed."""

from __future__ import annotations

import operator
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np

__all__ = ["apart", "array", "finite", "integer", "number", "rate", "same_length"]

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def array(name: str, value: Any, *dtypes: Any, written: bool = False) -> None:
    """Refuse what is not a contiguous 1-D array of one of ``dtypes``."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, not {type(value).__name__}")
    if value.dtype not in dtypes:
        wanted = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        raise TypeError(f"{name} must be {wanted} in native byte order, not {value.dtype}")
    if value.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, not of shape {value.shape}")
    flags = value.flags
    if not (flags.c_contiguous and flags.aligned):
        raise ValueError(
            f"{name} must be contiguous and aligned; pass np.ascontiguousarray({name})"
        )
    if written and not flags.writeable:
        raise ValueError(f"{name} is read-only, but is written in place")


def same_length(**arrays: np.ndarray[Any, Any]) -> None:
    """Refuse arrays of different lengths."""
    sizes = {name: value.size for name, value in arrays.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"arrays must have one length, not {listed}")


def apart(written: dict[str, np.ndarray[Any, Any]], read: dict[str, np.ndarray[Any, Any]]) -> None:
    """Refuse a written array that shares memory with any other."""
    others = {**written, **read}
    for name, value in written.items():
        del others[name]
        for other, its_value in others.items():
            if np.may_share_memory(value, its_value):
                raise ValueError(f"{name} is written in place and must not overlap {other}")


def finite(name: str, value: np.ndarray[Any, Any]) -> None:
    """Refuse an array with an infinity or NaN in it."""
    if not np.isfinite(value).all():
        index = int(np.flatnonzero(~np.isfinite(value))[0])
        raise ValueError(f"{name}[{index}] = {value[index]} is not finite")


def number(name: str, value: SupportsFloat | SupportsIndex) -> float:
    """Return ``value`` as a finite float."""
    result = float(value)
    if not abs(result) < np.inf:
        raise ValueError(f"{name} must be finite, not {result}")
    return result


def rate(name: str, value: SupportsFloat | SupportsIndex) -> float:
    """Return a step size or strength: finite in float32 and not negative."""
    result = float(value)
    if not 0.0 <= result <= _FLOAT32_MAX:
        raise ValueError(f"{name} must be finite in float32 and not negative, not {result}")
    return result


def integer(name: str, value: SupportsIndex, low: int, high: int) -> int:
    """Return ``value`` as an int in [low, high)."""
    result = operator.index(value)
    if not low <= result < high:
        raise ValueError(f"{name} must lie in [{low}, {high}), not {result}")
    return result
