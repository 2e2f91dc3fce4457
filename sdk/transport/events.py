"""The queue between network threads and the one thread that steps a machine."""

from __future__ import annotations

import queue
import time
from typing import Any

__all__ = ["EventQueue"]

_LONGEST_SLEEP = 1.0
_HURRY = 0.02


class EventQueue:
    """Events from any thread, taken one by one by the driver of a machine."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, event: Any) -> None:
        self._queue.put(event)

    @property
    def empty(self) -> bool:
        return self._queue.empty()

    def next(self, wake: float | None, *, hurry: bool = False) -> Any:
        """The next event; None once ``wake`` (monotonic) has come, or nothing came for long.

        ``hurry``: something waits for room on the link; look again soon.
        """
        pause = _LONGEST_SLEEP if wake is None else wake - time.monotonic()
        if hurry:
            pause = min(pause, _HURRY)
        try:
            return self._queue.get(timeout=min(max(pause, 0.0), _LONGEST_SLEEP))
        except queue.Empty:
            return None
