"""Keeping a process small: work in parts, and memory that is given back when it is freed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

__all__ = ["CHUNK", "parts", "return_large_blocks"]

CHUNK = 1 << 16  # elements

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_LARGE = 1 << 18  # bytes


def parts(n: int) -> Iterator[slice]:
    """Cut n elements into parts that are worked on one after the other, to save memory."""
    for start in range(0, n, CHUNK):
        yield slice(start, min(start + CHUNK, n))


def return_large_blocks() -> bool:
    """Let the C library give freed blocks of 256 KiB and more back to the system at once.

    glibc otherwise takes the first large block that is freed as a sign that more will come,
    and keeps up to 64 MB of them: a device whose vectors have 20 MB would look, and be, larger by
    several of them. It holds for the whole process. False where the C library is another.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, _LARGE))
