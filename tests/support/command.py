"""The command ``kellet`` as a user meets it: a process, its output and its exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

__all__ = ["Done", "Running", "command", "nothing_left"]

PATIENCE = 60.0  # s; there to end a test that hangs
_PROGRAM = (sys.executable, "-P", "-m", "kellet.sdk.cli")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Its errors, but for the notice that NumPy computes where nothing is compiled."""
        lines = self.err.splitlines(keepends=True)
        return "".join(line for line in lines if "kellet.kernels computes with" not in line)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    def failed(self, code: int, *words: str) -> None:
        """Hold that it ended in words with this code: one paragraph, no traceback."""
        assert self.code == code, (self.code, self.out, self.err)
        assert "Traceback" not in self.err + self.out
        assert self.said.startswith("kellet: "), self.err
        assert len(self.said.strip().splitlines()) == 1, self.err
        for word in words:
            assert word in self.said, (word, self.err)


def command(
    *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Done:
    """Run ``kellet`` with ``arguments`` to its end."""
    done = subprocess.run(
        [*_PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


class Running:
    """``kellet ... --json`` while it runs, in a session of its own; killed at the block's end."""

    def __init__(
        self, *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            [*_PROGRAM, *map(str, arguments), "--json"],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def events(self) -> Iterator[dict[str, Any]]:
        """Its JSON lines, as they come."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def wait_for(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The ``count``-th event of this kind from now on."""
        for event in self.events():
            count -= event["event"] == kind
            if count == 0:
                return event
        raise AssertionError(f"it ended without {kind!r}: {self.end().err}")

    def press_ctrl_c(self) -> None:
        """As a terminal does it: the signal goes to the whole process group."""
        os.killpg(self.pid, signal.SIGINT)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> Done:
        """Wait for its end."""
        out, err = self._process.communicate(timeout=PATIENCE)
        return Done(self._process.returncode, out, err)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()


def nothing_left(mark: str, within: float = 5.0) -> bool:
    """Whether soon no process has ``mark`` (a path of the test's own) among its arguments."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        if not any(mark in " ".join(p.info["cmdline"] or ()) for p in _processes()):
            return True
        time.sleep(0.05)
    return False


def _processes() -> Iterator[psutil.Process]:
    return (p for p in psutil.process_iter(["cmdline"]) if p.pid != os.getpid())
