"""Algorithms by name: those that ship, and those of a user's own module."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from kellet.sdk.algorithms.averaging import FedAvg
from kellet.sdk.errors import UsageError

__all__ = ["ALGORITHMS", "from_wire", "make", "make_one_of", "register"]

_Kind = TypeVar("_Kind")
_Algorithm = TypeVar("_Algorithm", bound=FedAvg)

ALGORITHMS: dict[str, type[FedAvg]] = {}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


def register(kind: type[_Algorithm]) -> type[_Algorithm]:
    """Make an algorithm known by its ``name``: a class decorator for a user's own.

    ``kind``: a frozen dataclass that extends ``FedAvg`` or another algorithm, with a name
    of its own. Both sides of the link have to register it, from the same module. Raises
    ``UsageError`` for a name that is malformed or another algorithm's, and for a class
    that an announcement could not carry.
    """
    name = kind.__dict__.get("name", "")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"{kind.__name__}.name = {name!r}",
            why="an algorithm is named in every announcement",
            repair='name: ClassVar[str] = "..." of small letters, digits and underscores',
        )
    taken = ALGORITHMS.get(name, kind)
    if (taken.__module__, taken.__qualname__) != (kind.__module__, kind.__qualname__):
        raise UsageError(
            f"the algorithm name {name!r} is taken",
            why=f"{taken.__module__}.{taken.__qualname__} has it",
            repair=f"give {kind.__qualname__} another name",
        )
    parameters = getattr(kind, "__dataclass_params__", None)
    if "__dataclass_fields__" not in kind.__dict__ or not (parameters and parameters.frozen):
        raise UsageError(
            f"{kind.__qualname__} is no frozen dataclass",
            why="its hyperparameters are its fields, and must not change during a round",
            repair="decorate it with @dataclass(frozen=True, kw_only=True)",
        )
    ALGORITHMS[name] = kind
    return kind


def make(name: str, **hyperparameters: Any) -> FedAvg:
    """The algorithm ``name`` with these hyperparameters; ``UsageError`` where either is unknown."""
    return make_one_of(ALGORITHMS, "algorithm", {**hyperparameters, "name": name})


def from_wire(fields: Mapping[str, Any]) -> FedAvg:
    """The algorithm of an announcement; ``UsageError`` where it is not known here."""
    name = str(fields.get("name", ""))
    if name not in ALGORITHMS:
        raise UsageError(
            f"no algorithm {name!r} is known here",
            why=f"there are {', '.join(ALGORITHMS)}",
            repair="name the module that registers it (kellet run --algorithms MODULE), or update",
        )
    return make_one_of(ALGORITHMS, "algorithm", fields)


def make_one_of(kinds: Mapping[str, type[_Kind]], noun: str, fields: Mapping[str, Any]) -> _Kind:
    """The dataclass that ``fields`` has the ``name`` of, of the others. Raises ``UsageError``."""
    hyperparameters = dict(fields)
    name = str(hyperparameters.pop("name", ""))
    kind = kinds.get(name)
    if kind is None:
        raise UsageError(f"no {noun} {name!r}", repair=f"choose one of {', '.join(kinds)}")
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in hyperparameters:
        if key not in known:
            raise UsageError(f"{name} has no {key!r}", repair=f"it has {', '.join(known)}")
    return kind(**hyperparameters)
