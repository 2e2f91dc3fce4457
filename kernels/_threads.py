"""Several threads for long vectors, with the bits of one.

Each element of a vector is computed from its own operands, so that where the
vector is cut changes nothing; a sum is cut at its blocks, whose order is
fixed. The compiled kernels run without Python's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any

from kellet.kernels import _checks
from kellet.kernels._backend import active

__all__ = ["SHORTEST", "bind", "cuts", "in_pieces", "run_all", "set_threads", "threads"]

SHORTEST = 1 << 20  # below, waking a thread costs more than it brings
_LINE = 64  # elements: no two threads write to one cache line
_MOST = 256

_count = 1
_pool: ThreadPoolExecutor | None = None


def set_threads(n: int) -> None:
    """Let kernels on vectors of a million elements or more use ``n`` threads; 1 at the start.

    The results have the same bits for every n.
    """
    global _count  # noqa: PLW0603
    _count = _checks.integer("n", n, 1, _MOST + 1)


def threads() -> int:
    """Return how many threads long vectors may use."""
    return _count


def _forget_pool() -> None:
    """A forked process has none of its parent's threads."""
    global _pool  # noqa: PLW0603
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def run_all(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the calls at the same time, the first in this thread, and return their results."""
    global _pool  # noqa: PLW0603
    if _pool is None:
        _pool = ThreadPoolExecutor(_MOST, "kellet-kernels")  # its threads start when first needed
    others = [_pool.submit(call) for call in calls[1:]]
    return [calls[0](), *(other.result() for other in others)]


def cuts(n: int, unit: int, count: int) -> list[int]:
    """Return where to cut n elements into at most ``count`` pieces, at multiples of ``unit``."""
    share = -(-n // (unit * count)) * unit
    return [*range(0, n, share), n]


def bind(kernel: str, arrays: tuple[Any, ...]) -> Callable[..., Any]:
    """Bind a kernel that computes each element by itself; long vectors are cut."""

    computes = active()
    whole = computes.bind(kernel, arrays)
    n = arrays[0].size
    if n < SHORTEST:
        return whole

    def cut(count: int) -> list[Callable[..., Any]]:
        return [
            computes.bind(kernel, tuple(array[start:stop] for array in arrays))
            for start, stop in pairwise(cuts(n, _LINE, count))
        ]

    return in_pieces(whole, cut)


def in_pieces(
    whole: Callable[..., Any], cut: Callable[[int], list[Callable[..., Any]]]
) -> Callable[..., Any]:
    """Return a function that runs ``whole``, or its pieces where several threads are allowed.

    The pieces are cut once for each number of threads; their results are
    returned as a list.
    """
    known: dict[int, list[Callable[..., Any]]] = {}

    def run(*scalars: float) -> Any:
        count = _count
        if count == 1:
            return whole(*scalars)
        if count not in known:
            known[count] = cut(count)
        return run_all([partial(piece, *scalars) for piece in known[count]])

    return run
