"""Hyperparameters held to the types of the dataclass that they are fields of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from kellet.sdk.errors import require

__all__ = ["hold_fields"]

_MOST = 2**31 - 1  # of a count: what a message and the step's arithmetic hold
_LARGEST = float(np.finfo(np.float32).max)


def hold_fields(value: Any, counts: Mapping[str, int], *, least: float | None = None) -> None:
    """Round a frozen dataclass's floats to float32, and refuse what its fields cannot be.

    ``counts``: the least of whole numbers, by name, where it is not the negative of the most.
    ``least``: of all floats, if they have one. Raises ``UsageError``.
    """
    for field in dataclasses.fields(value):
        given = getattr(value, field.name)
        match field.type if isinstance(field.type, str) else field.type.__name__:
            case "float":
                object.__setattr__(value, field.name, _float32(field.name, given, least))
            case "int":
                whole = isinstance(given, int) and not isinstance(given, bool)
                low = counts.get(field.name, -_MOST)
                wanted = f"a whole number, at least {low} and at most {_MOST}"
                require(whole and low <= given <= _MOST, field.name, given, wanted)
            case "bool":
                require(isinstance(given, bool), field.name, given, "true or false")
            case "str":
                require(isinstance(given, str), field.name, given, "a text")


def _float32(name: str, given: Any, least: float | None) -> float:
    number = isinstance(given, (int, float, np.floating)) and not isinstance(given, bool)
    low = -_LARGEST if least is None else least
    wanted = "a finite float32" if least is None else f"a finite float32, at least {least:g}"
    require(number and low <= given <= _LARGEST, name, given, wanted)
    return float(np.float32(given))
