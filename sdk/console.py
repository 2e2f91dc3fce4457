"""What a command says: a live display on a terminal, plain lines elsewhere, or JSON lines.

Everything goes to stdout but errors, which go to stderr in words and, with
``--json``, to stdout as the last line too.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from kellet.sdk.errors import KelletError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = ["Console", "print_error", "stdout_set_aside"]

_own_stdout: TextIO | None = None  # ours, while a user's function has stderr for it


@contextmanager
def stdout_set_aside() -> Iterator[None]:
    """Inside the block ``print`` writes to stderr, in every thread; our own output stays."""
    global _own_stdout  # noqa: PLW0603 - a process has one stdout
    before = _own_stdout
    _own_stdout = before or sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _own_stdout = before


class Console:
    """One command's output.

    ``live``: stdout is a terminal that can move its cursor, and JSON was not asked for.
    Use it as a context manager, so that the terminal is whole again when the command ends.
    """

    def __init__(self, *, json: bool = False) -> None:
        self.json = json
        self.live = not json and _can_redraw()
        self._display: Live | None = None

    def event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Something happened: a JSON line, or nothing."""
        if self.json:
            _line({"event": kind, "time": round(time.time(), 3), **facts})

    def say(self, text: str) -> None:
        """A line for people, above the live display."""
        if self.json:
            return
        if self._display is not None:
            from rich.text import Text

            self._display.console.print(Text(text))
        else:
            print(text, file=_stdout(), flush=True)

    def show(self, renderable: Callable[[], RenderableType]) -> None:
        """Replace the live display, if there is one, by what ``renderable`` returns."""
        if not self.live:
            return
        if self._display is None:
            from rich.console import Console as Terminal
            from rich.live import Live

            self._display = Live(
                console=Terminal(file=_stdout()),
                auto_refresh=False,
                vertical_overflow="crop",
                redirect_stdout=False,  # `stdout_set_aside` does, and both would get entangled
            )
            self._display.start()
        self._display.update(renderable(), refresh=True)

    def end_display(self, *, keep: bool) -> None:
        """Leave the live display as it is, or (``keep`` False) take it away."""
        if self._display is not None:
            self._display.transient = not keep
            self._display.stop()
            self._display = None

    def result(self, facts: Mapping[str, Any], text: str) -> None:
        """What the command came to: one JSON object, or words."""
        if self.json:
            _line(facts)
        elif text:
            self.say(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end_display(keep=True)


def print_error(error: KelletError, *, json: bool) -> None:
    """Say what happened, why, and the repair."""
    print(f"kellet: {error}", file=sys.stderr, flush=True)
    if json:
        _line(
            {
                "event": "error",
                "error": type(error).__name__,
                "what": error.what,
                "why": error.why,
                "repair": error.repair,
                "exit_code": error.exit_code,
            }
        )


def _stdout() -> TextIO:
    return _own_stdout or sys.stdout


def _line(facts: Mapping[str, Any]) -> None:
    print(json.dumps(facts, default=_plain), file=_stdout(), flush=True)


def _plain(value: Any) -> Any:
    """What JSON has no word for: NumPy's scalars as numbers, bytes as hex, the rest as text."""
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def _can_redraw() -> bool:
    return _stdout().isatty() and os.environ.get("TERM", "") not in ("", "dumb")
