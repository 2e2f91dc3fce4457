"""Ctrl-C and SIGTERM: an orderly end where there is one, an exception elsewhere.

Everything that must last is on the disk at any moment, so an exception may come
anywhere. What is orderly beside it: to finish the step, and to take leave of the
broker and the children.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "install", "orderly_stop", "raised", "release"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_stop: Callable[[], object] | None = None
_asked: signal.Signals | None = None
_raised: signal.Signals | None = None


class Interrupted(BaseException):
    """A signal asks this process to end."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number

    @property
    def exit_code(self) -> int:
        """128 and the signal's number, as a shell says it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.number


def install() -> None:
    """Turn the signals that end a process into `Interrupted`; those that are ignored stay so."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _handle)


def release() -> None:
    """Let them end the process at once: the command is done."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_DFL)


def raised() -> signal.Signals | None:
    """The signal that `Interrupted` was raised for, if any.

    C code that is interrupted, as NumPy's while it is imported, puts errors of its own in
    the exception's place.
    """
    return _raised


@contextmanager
def orderly_stop(stop: Callable[[], object]) -> Iterator[None]:
    """Inside the block the first signal calls ``stop`` and the second raises.

    ``Interrupted`` is raised behind the block in either case.
    """
    global _stop, _asked  # noqa: PLW0603 - a process has one set of signal handlers
    _stop, _asked = stop, None
    try:
        yield
    finally:
        _stop = None
    if _asked is not None:
        raise Interrupted(_asked)


def _handle(number: int, _frame: FrameType | None) -> None:
    global _asked, _raised  # noqa: PLW0603
    if _stop is None or _asked is not None:
        _raised = signal.Signals(number)
        raise Interrupted(_raised)
    _asked = signal.Signals(number)
    _stop()
