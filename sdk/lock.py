"""One process a state directory."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from kellet.sdk.errors import StorageError

__all__ = ["StateLock"]


class StateLock:
    """Held while a process uses ``folder``; the kernel lets go of it when the process dies."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(
                f"the state directory {folder} cannot be used",
                why=error.strerror or str(error),
                repair="check the path and its permissions, or choose another --state directory",
            ) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            taken = error.errno in (errno.EWOULDBLOCK, errno.EACCES)
            raise StorageError(
                f"the state directory {folder} is in use"
                if taken
                else f"{folder} cannot be locked",
                why="another process has it open" if taken else str(error),
                repair="stop that process, or choose another --state directory",
            ) from None

    def release(self) -> None:
        """Let go of the folder. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
