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

__all__ = ["LONGEST", "Folder", "Whole", "called_by_options"]

LONGEST = 1e8  # s, three years: what clocks and waits can bear


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
