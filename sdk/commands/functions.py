"""``MODULE:FUNCTION``: a user's own function, found and called with errors in words."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from numpy.typing import ArrayLike

from kellet.sdk.algorithms import ALGORITHMS
from kellet.sdk.console import stdout_set_aside
from kellet.sdk.errors import DataError, KelletError, UsageError
from kellet.sdk.signals import Interrupted

__all__ = ["call", "data_function", "find_function", "load_algorithms", "xy"]

Arrays = tuple[ArrayLike, ArrayLike]


def find_function(spec: str, option: str) -> Callable[..., Any]:
    """Import what ``MODULE:FUNCTION`` names, the working directory first.

    ``option`` is where the user wrote it. Raises ``UsageError`` where there is no such
    module or function, ``DataError`` where importing the module fails.
    """
    if not re.fullmatch(r"[\w.]+:[\w.]+", spec):
        raise UsageError(
            f"{option} {spec}",
            why="it must name a function",
            repair=f"write {option} MODULE:FUNCTION, for load() in mydata.py: mydata:load",
        )
    name, _, path = spec.partition(":")
    found: Any = _import(name, option)
    for part in path.split("."):
        owner, found = found, getattr(found, part, None)
        if found is None:
            raise UsageError(
                f"{option}: {name} has no {part!r}",
                why=f"{_where(owner)} defines {_callables(owner)}",
                repair=_closest(part, owner) or "name one of these",
            )
    if not callable(found):
        raise UsageError(
            f"{option}: {spec} is not a function",
            why=f"it is of type {type(found).__name__}",
            repair="name a function; it is called when the data is needed",
        )
    function: Callable[..., Any] = found
    return function


def load_algorithms(module: str, option: str) -> tuple[str, ...]:
    """Import a module of the user's, the working directory first; the algorithms it registers.

    ``option`` is where the user wrote it. Raises ``UsageError`` where there is no such module
    or it registers none, ``DataError`` where importing it fails.
    """
    if not re.fullmatch(r"[\w.]+", module):
        raise UsageError(f"{option} {module}", why="it must name a module", repair="mymodule")
    _import(module, option)
    here = f"{module}."
    names = tuple(n for n, kind in ALGORITHMS.items() if f"{kind.__module__}.".startswith(here))
    if not names:
        raise UsageError(
            f"{option}: {module} registers no algorithm",
            why="none of its classes is decorated with kellet.sdk.algorithms.register",
            repair="decorate the device half with it (docs/own-algorithm.md)",
        )
    return names


def call(function: Callable[..., Any], spec: str, *arguments: object) -> Any:
    """Call a user's function. What it raises becomes a ``DataError`` that says where.

    What it prints goes to stderr.
    """
    try:
        with stdout_set_aside():
            return function(*arguments)
    except (KelletError, Interrupted):
        raise
    except BaseException as error:  # its sys.exit() must not end us as if all were well
        failed = DataError(
            f"{spec} raised {type(error).__name__}",
            why=_last_line(error),
            repair="repair the function, or what it reads",
        )
        raise failed from error


def xy(value: Any, spec: str) -> Arrays:
    """``value`` if it is a pair (x, y). Raises ``DataError``."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        shown = type(value).__name__
        if isinstance(value, (tuple, list)):
            shown += f" of {len(value)}"
        raise DataError(
            f"{spec} returned a {shown}",
            why="a data function returns two arrays, (x, y)",
            repair="return x, y: float32 [n, *input] and int64 [n]",
        )
    return value[0], value[1]


def data_function(spec: str, option: str = "--data") -> Callable[[str], Arrays]:
    """A device's data function, ``function(device) -> (x, y)``, with errors in words."""
    function = find_function(spec, option)
    return lambda device: xy(call(function, spec, device), spec)


def _import(name: str, option: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with stdout_set_aside():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only a part of the name that was asked for is a slip in the option.
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise _broken(name, option, error) from error
        raise UsageError(
            f"{option}: there is no module {error.name!r}",
            why=f"it is neither in {here} nor on Python's path",
            repair="run kellet where the module is, or set PYTHONPATH",
        ) from None
    except (KelletError, Interrupted):
        raise
    except BaseException as error:  # sys.exit() at the module's end, say
        raise _broken(name, option, error) from error


def _broken(name: str, option: str, error: BaseException) -> DataError:
    return DataError(
        f"{option}: the module {name!r} cannot be imported",
        why=f"{type(error).__name__}: {_last_line(error)}",
        repair="repair it: python -c 'import " + name + "' shows the whole error",
    )


def _last_line(error: BaseException) -> str:
    """The error's text, and the place of the user's that it came from."""
    text = str(error).strip().splitlines()
    shown = text[0][:300] if text else type(error).__name__
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<frozen")
    ]
    return f"{shown} (line {frames[-1].lineno} of {frames[-1].filename})" if frames else shown


def _where(owner: object) -> str:
    return str(getattr(owner, "__file__", None) or getattr(owner, "__name__", owner))


def _names(owner: object) -> list[str]:
    return [n for n in vars(owner) if not n.startswith("_") and callable(getattr(owner, n))]


def _callables(owner: object) -> str:
    names = _names(owner)
    shown = ", ".join(names[:6]) or "no functions"
    return shown + (", ..." if len(names) > 6 else "")


def _closest(part: str, owner: object) -> str:
    close = difflib.get_close_matches(part, _names(owner), 1)
    return f"did you mean {close[0]}?" if close else ""
