"""Whether temporaries get memory that the process has had before."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# malloc.h of the GNU C library
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let malloc give nothing back to the system; False where it cannot be told so.

    By default glibc returns a large temporary, or keeps it, by the state of its heap: the same
    expression takes 3 or 30 times as long. A peer must not lose by that.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
