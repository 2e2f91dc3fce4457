"""Workers in processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from kellet.sdk.errors import FleetError
from kellet.server.simulate.workers import (
    UNPICKLABLE,
    Answer,
    Brief,
    Worker,
    cannot_travel,
)

__all__ = ["Processes"]

_PATIENCE = 2.0  # s until the system knows how a process has ended


class Processes:
    """Fresh processes (spawned, not forked: nothing is inherited), which end with this one.

    They are told things through pipes that nobody else can reach, as pickles.
    """

    def __init__(self, briefs: Sequence[Brief]) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess] = []
        self._links: list[Connection] = []
        try:
            for number in range(len(briefs)):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_serve,
                    args=(theirs, sys.path),
                    name=f"kellet-worker-{number + 1}",
                    daemon=True,
                )
                process.start()
                theirs.close()  # so that the end of the worker is the end of the pipe
                self._processes.append(process)
                self._links.append(ours)
            for number, brief in enumerate(briefs):
                self.ask(number, "begin", brief)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._processes)

    def ask(self, worker: int, what: str, *arguments: Any) -> None:
        try:
            self._links[worker].send((what, arguments))
        except (BrokenPipeError, ConnectionResetError):
            raise self._ended(worker) from None
        except UNPICKLABLE as error:
            raise cannot_travel(str(error)) from error

    def answer(self, worker: int) -> Answer:
        link, process = self._links[worker], self._processes[worker]
        wait([link, process.sentinel])
        try:
            # An answer may still lie in the pipe of a worker that has ended.
            if link.poll():
                answer: Answer = link.recv()
                return answer
        except (EOFError, ConnectionResetError):
            pass
        raise self._ended(worker)

    def close(self) -> None:
        for link in self._links:
            link.close()
        for process in self._processes:
            process.kill()  # it may be at work, and has nothing to lose
        for process in self._processes:
            process.join()

    def _ended(self, worker: int) -> FleetError:
        process = self._processes[worker]
        process.join(_PATIENCE)
        code = process.exitcode
        why = f"exit code {code}"
        if code is not None and code < 0:
            why = f"killed by {signal.Signals(-code).name}"
        return FleetError(
            f"worker {worker + 1} of {len(self)} has ended (process {process.pid})",
            why=why,
            repair="see whether memory was short: fewer workers take less",
        )


def _serve(link: Connection, path: Sequence[str]) -> None:
    """A worker's life: answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the command, which ends us
    _end_with_parent()
    worker = Worker(path)
    while True:
        try:
            what, arguments = link.recv()
        except EOFError:
            return
        answer = worker.answer(what, arguments)
        try:
            link.send(answer)
        except BrokenPipeError:
            return
        except UNPICKLABLE:
            link.send(answer.in_words())


def _end_with_parent() -> None:
    """Leave no worker behind once the command was killed, whatever it is busy with."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_end, args=(parent,), daemon=True).start()


def _wait_and_end(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)
