"""Memory that is given back when it is freed."""

from __future__ import annotations

import ctypes

__all__ = ["return_large_blocks"]

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_LARGE = 1 << 18  # bytes


def return_large_blocks() -> bool:
    """Let the C library give freed blocks of 256 KiB and more back to the system at once.

    glibc otherwise takes the first large block that is freed as a sign that more will come,
    and keeps up to 64 MB of them: a device whose vectors have 20 MB would look, and be, larger by
    several of them. It holds for the whole process. False where the C library is another.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, _LARGE))
