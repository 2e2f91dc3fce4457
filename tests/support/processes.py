"""Child processes that report in JSON lines: started, watched with deadlines, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

__all__ = ["KILLED", "Child", "wait_until"]

KILLED = -signal.SIGKILL
PATIENCE = 60.0  # s; the machine is shared, and a deadline is there to end a test that hangs
_TESTS = Path(__file__).parents[1]

Reported = dict[str, Any]


class Child:
    """A process that runs ``python -m MODULE JSON``, and all that it has reported.

    ``log``: where its stderr goes. ``reports.log`` beside it has the reports of all, with times.
    ``python``: the command of another Python than this one.
    """

    def __init__(
        self,
        module: str,
        spec: Mapping[str, Any],
        log: Path,
        *,
        python: Sequence[str] = (sys.executable,),
    ) -> None:
        self.log = log
        self._reports: list[Reported] = []
        self._ended = False
        self._news = threading.Condition()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [*python, "-P", "-m", module, json.dumps(spec)],
                env={**os.environ, "PYTHONPATH": str(_TESTS)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def usage(self) -> psutil.Process:
        """For memory, threads and open files."""
        return psutil.Process(self.pid)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def reports(self, kind: str = "") -> list[Reported]:
        """What it has reported so far, of one kind or all."""
        with self._news:
            return [each for each in self._reports if not kind or each["kind"] == kind]

    def wait(
        self, true: Callable[[list[Reported]], bool], what: str, timeout: float = PATIENCE
    ) -> None:
        """Until ``true`` of the reports so far; fails where the process ends before that."""
        with self._news:
            met = self._news.wait_for(lambda: true(self._reports) or self._ended, timeout)
            if not (met and true(self._reports)):
                raise AssertionError(f"no {what}; {self._story()}")

    def wait_for(
        self, kind: str, *, count: int = 1, timeout: float = PATIENCE, **facts: Any
    ) -> Reported:
        """The ``count``-th report of a kind in which the facts are those given."""

        def fitting(reports: list[Reported]) -> list[Reported]:
            wanted = {"kind": kind, **facts}.items()
            return [each for each in reports if wanted <= each.items()]

        self.wait(
            lambda reports: len(fitting(reports)) >= count, f"{kind} {facts} x {count}", timeout
        )
        return fitting(self.reports())[count - 1]

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self._process.kill()
        self.end()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self._process.terminate()
        return self.end()

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self, timeout: float = PATIENCE) -> int:
        """Wait for the end; the exit code, negative for a signal."""
        deadline = time.monotonic() + timeout
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end; {self._story()}") from None
        self._reader.join(max(0.0, deadline - time.monotonic()))
        return code

    def close(self) -> None:
        """Leave nothing behind."""
        if self.alive:
            self._process.kill()
        self._process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._process.stdout is not None
        history = self.log.with_name("reports.log")
        with self._process.stdout as lines, history.open("ab", buffering=0) as story:
            for line in lines:
                if not line.endswith(b"\n"):
                    break  # it died while it wrote
                story.write(f"{time.monotonic():.3f} {self.log.stem} {self.pid} ".encode() + line)
                with self._news:
                    self._reports.append(json.loads(line))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _story(self) -> str:
        errors = self.log.read_text(errors="replace").strip().splitlines()[-8:]
        return f"last reports {self._reports[-4:]}; exit code {self._process.poll()}; {errors}"


def wait_until(true: Callable[[], bool], timeout: float = PATIENCE) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.005)
