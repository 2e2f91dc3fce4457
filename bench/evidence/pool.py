"""Work many independent cells, in several processes, and let an interrupt lose only those begun."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["work"]

T = TypeVar("T")
R = TypeVar("R")

# A cell is single-threaded: libraries must not start as many threads as there are cores.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def work(
    do: Callable[[T], R], cells: Sequence[T], processes: int, done: Callable[[T, R], None]
) -> None:
    """Call ``done(cell, do(cell))`` for each cell, as they finish, in this process.

    ``do`` runs in one of ``processes`` fresh processes, or here where that is 1; it and the cells
    can be pickled. An exception of one cell ends the others, as an interrupt does.
    """
    if processes == 1 or len(cells) < 2:
        for cell in cells:
            done(cell, do(cell))
        return
    with _fresh_processes(min(processes, len(cells))) as pool:
        begun = {pool.submit(do, cell): cell for cell in cells}
        for future in as_completed(begun):
            done(begun[future], future.result())


@contextmanager
def _fresh_processes(processes: int) -> Iterator[ProcessPoolExecutor]:
    before = set(multiprocessing.active_children())
    kept = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    pool = ProcessPoolExecutor(
        processes, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    )
    try:
        yield pool
    except BaseException:  # an interrupt as well: nobody waits for a cell of minutes
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _end_with_parent() -> None:
    """Leave no cell at work for nobody, once the command was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_end, args=(parent,), daemon=True).start()


def _wait_and_end(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
