"""Types of options that commands share, and settings called by their options' names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kellet.sdk.errors import UsageError

if TYPE_CHECKING:
    from cyclopts import Token

__all__ = ["Folder", "Output", "Whole", "called_by_options", "check_output"]


def _whole(_type: object, tokens: Sequence[Token]) -> int:
    text = tokens[0].value
    if not re.fullmatch(r"[+-]?\d{1,30}", text):  # Cyclopts itself would round 1.5
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _folder(_type: object, tokens: Sequence[Token]) -> Path:
    text = tokens[0].value
    if not text:  # to pathlib that is the working directory
        raise ValueError("the name is empty")
    return Path(text)


Whole = Annotated[int, Parameter(converter=_whole)]
Folder = Annotated[Path, Parameter(converter=_folder)]
Output = Annotated[Path, Parameter(name=["--output", "-o"])]


def check_output(file: Path, *, force: bool) -> None:
    """Raise ``UsageError`` unless ``file`` can be written, and with ``force`` alone written over.

    To be asked before the work whose result it takes.
    """
    if file.exists() and not file.is_file():
        kind = "a directory" if file.is_dir() else "not a regular file"
        raise UsageError(f"--output {file}", why=f"it is {kind}", repair="name a file to write")
    if not file.parent.is_dir():
        raise UsageError(
            f"--output {file}", why=f"there is no directory {file.parent}", repair="make it first"
        )
    if file.exists() and not force:
        raise UsageError(
            f"--output {file}",
            why="the file is there already",
            repair="name another, or write over it with --force",
        )


@contextmanager
def called_by_options(**renamed: str) -> Iterator[None]:
    """Let a ``UsageError`` about ``some_setting = value`` name the option --some-setting.

    ``renamed``: option names, without dashes, of settings that are called otherwise.
    """
    try:
        yield
    except UsageError as error:
        setting = re.match(r"(\w+) = ", error.what)
        if setting is None:
            raise
        name = setting[1]
        option = "--" + renamed.get(name, name.replace("_", "-"))
        raise UsageError(
            option + error.what[len(name) :],
            why=error.why,
            repair=re.sub(rf"\b{name}\b", option, error.repair),
        ) from None
