"""Work many independent cells, in several processes, and let an interrupt lose only those begun."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

__all__ = ["work", "work_and_tell"]

T = TypeVar("T")
R = TypeVar("R")
N = TypeVar("N")

# A cell is single-threaded: libraries must not start as many threads as there are cores.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LOOK = 0.1  # s between two looks for what cells have told

_do: Callable[..., Any]  # of a worker process, as `_begin` was given them
_news: Any


def work(
    do: Callable[[T], R], cells: Sequence[T], processes: int, done: Callable[[T, R], None]
) -> None:
    """Call ``done(cell, do(cell))`` for each cell, as they finish, in this process.

    ``do`` runs in one of ``processes`` fresh processes, or here where that is 1; it and the cells
    can be pickled, and it is pickled once a process. An exception of one cell ends the others,
    as an interrupt does.
    """
    work_and_tell(partial(_quietly, do), cells, processes, done, lambda _cell, _news: None)


def work_and_tell(
    do: Callable[[T, Callable[[N], None]], R],
    cells: Sequence[T],
    processes: int,
    done: Callable[[T, R], None],
    told: Callable[[T, N], None],
) -> None:
    """As `work`; ``do(cell, tell)`` tells what happens on the way.

    ``told(cell, news)`` is called in this process, for all news of a cell before it is done.
    """
    if processes == 1 or len(cells) < 2:
        for cell in cells:
            done(cell, do(cell, partial(told, cell)))
        return
    context = multiprocessing.get_context("spawn")
    news = context.SimpleQueue()
    with _fresh_processes(min(processes, len(cells)), context, (do, news)) as pool:
        with _held_back():
            begun = {pool.submit(_work, i, cell): i for i, cell in enumerate(cells)}
        left: set[Future[R]] = set(begun)
        while left:
            ended, left = wait(left, timeout=_LOOK, return_when=FIRST_COMPLETED)
            order = sorted(ended, key=begun.__getitem__)
            results = [(cells[begun[future]], future.result()) for future in order]
            while not news.empty():  # what a cell told is here before its end is
                index, item = news.get()
                told(cells[index], item)
            for cell, result in results:
                done(cell, result)


def _quietly(do: Callable[[T], R], cell: T, _tell: Callable[[Any], None]) -> R:
    return do(cell)


@contextmanager
def _fresh_processes(
    processes: int, context: multiprocessing.context.SpawnContext, given: tuple[Any, ...]
) -> Iterator[ProcessPoolExecutor]:
    before = set(multiprocessing.active_children())
    kept = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin, initargs=given)
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


@contextmanager
def _held_back() -> Iterator[None]:
    """Let the processes that are started inside the block never see a Ctrl-C.

    A terminal sends it to all of them, and each would tell of it; this process alone decides.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(do: Callable[..., Any], news: Any) -> None:
    global _do, _news
    _do, _news = do, news
    # Leave no cell at work for nobody, once the command was killed.
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_end, args=(parent,), daemon=True).start()


def _work(index: int, cell: Any) -> Any:
    return _do(cell, lambda item: _news.put((index, item)))


def _wait_and_end(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
