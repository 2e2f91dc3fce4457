"""The demo's processes: they report in JSON lines, and die with the demo."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from kellet.server.brokers.child import command_that_dies_with_us

__all__ = ["ENDED", "Child", "Inbox"]

ENDED = "ended"
Inbox: TypeAlias = "queue.SimpleQueue[tuple[Child, dict[str, Any]]]"


class Child:
    """``kellet`` with ``arguments`` as a process of its own.

    Each JSON line that it prints reaches ``inbox``, and after the last one the event
    ``ended``. What it writes to stderr is added to ``log``. Start it from a thread that
    outlives it: the kernel ends it with the thread that started it.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        inbox: Inbox,
        *,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self.log = log
        self.killed = False
        self.expected = False  # its end is our doing
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-P", "-m", "kellet.sdk.cli", *arguments, "--json"]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command_that_dies_with_us(["exec", *command]),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **environment},
                process_group=0,  # Ctrl-C is the demo's to answer, and then it goes in order
            )
        self._reader = threading.Thread(target=self._read, args=(inbox,), daemon=True)
        self._reader.start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """As a power cut would: no warning, nothing is written any more."""
        self.killed = self.expected = True
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """Let it finish its step and take leave."""
        self.expected = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def wait(self, until: float) -> int | None:
        """Its exit code (minus the signal where one ended it); None if it runs at ``until``."""
        try:
            return self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1][-400:] if lines else "it did not say why"

    def _read(self, inbox: Inbox) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                # A line that a kill has cut off is no JSON.
                with contextlib.suppress(ValueError):
                    inbox.put((self, json.loads(line)))
        inbox.put((self, {"event": ENDED}))
