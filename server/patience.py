"""When who has to wait is to ask again, so that a crowd does not ask in one moment."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

__all__ = ["Queue", "spread"]

SHORTEST = 1.0  # s
LONGEST = 60.0
FORGOTTEN = 60.0  # s after which who did not come again is no longer waited for


def spread(seconds: float, device: str, tries: int) -> float:
    """``seconds``, or down to half of it, as the device and its tries draw it.

    The same fleet is told the same times again, and a device another one each time.
    """
    return seconds * (1 - zlib.crc32(f"{device}/{tries}".encode()) / 2**33)


@dataclass(slots=True)
class _Waiting:
    size: int
    before: int  # bytes that had ever joined the queue when it did
    tries: int = 0
    until: float = 0.0


class Queue:
    """Uploads that were told to come again, in the order in which they first came.

    ``room``: bytes that are granted at once. What is before an upload needs as long as it
    takes such a room to be emptied, again and again: a turn each time, as uploads take it.
    """

    def __init__(self, room: int) -> None:
        self._room = room
        self._turn = SHORTEST
        self._waiting: dict[bytes, _Waiting] = {}
        self._joined = self._left = 0  # bytes, ever
        self._look = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def after(self, device: str, uid: bytes, size: int, now: float, *, oldest: float) -> float:
        """Seconds after which this upload is to be offered again.

        ``oldest``: since when the oldest of those that were granted is under way. It tells
        how slow they are where none has come to an end yet.
        """
        self._forget_old(now)
        waiting = self._waiting.get(uid)
        if waiting is None:
            waiting = self._waiting[uid] = _Waiting(size, self._joined)
            self._joined += size
        turns = max(0, waiting.before - self._left) / self._room
        seconds = min(LONGEST, max(SHORTEST, turns * max(self._turn, now - oldest)))
        seconds = spread(seconds, device, waiting.tries)
        waiting.tries += 1
        waiting.until = now + seconds + FORGOTTEN
        return seconds

    def leave(self, uid: bytes) -> None:
        """The upload waits no longer, if it did."""
        waiting = self._waiting.pop(uid, None)
        self._left += waiting.size if waiting else 0

    def took(self, seconds: float) -> None:
        """An upload that was granted is complete after so long."""
        self._turn += 0.2 * (seconds - self._turn)

    def _forget_old(self, now: float) -> None:
        if now < self._look:
            return
        self._look = now + FORGOTTEN
        for uid in [uid for uid, waiting in self._waiting.items() if now >= waiting.until]:
            self.leave(uid)
