"""The names of settings: whose each is, of what type, and what is said of one that there is not.

A setting is named as in the command: ``mu``, ``cohort``, ``alpha``. Where both the partition
and an algorithm have one of that name (FedDyn's alpha), it is ``partition.alpha`` and
``algorithm.alpha``; these whole names are always understood.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from kellet.sdk.algorithms import ALGORITHMS, FedAvg
from kellet.sdk.errors import UsageError
from kellet.server.optimizers import OPTIMIZERS
from kellet.server.research.partitions import KINDS, parse
from kellet.server.selection import SELECTIONS

__all__ = [
    "NONE",
    "OF_RUNS",
    "OF_SELECTIONS",
    "Axes",
    "Names",
    "algorithm_named",
    "convert",
    "fields",
    "text",
]

Axes = Mapping[str, Sequence[Any]]

NONE = "none"  # what there is not: a server optimizer, a partition, a schedule, a personal model
_OF_PARTITIONS = {"alpha": float, "percent": float, "labels": int}
_OF_FLEETS: dict[str, Any] = {"partition": str, "clients": int, "least": int, "feature": int}
OF_RUNS: dict[str, Any] = {
    "cohort": int | Literal["all"],
    "selection": Literal[tuple(SELECTIONS)],
    "personal": str,
    "schedule": str,
    "scheme": str,
    "shift": Literal["f32", "int8"],
    "uplink": str,  # f32, q8, or topk:SHARE
    "share": float,
    "feedback": bool,
    "downlink": Literal["f32", "q8"],
}
# Of a selection, beside its name: the settings that not all of them have.
OF_SELECTIONS: dict[str, Any] = {
    "window": float,
    "distance": str,
    "neighbours": int,
    "threshold": float,
    "fairness": float,
    "feature_bins": int,
}
OF_RUNS |= OF_SELECTIONS


@dataclass(frozen=True)
class Names:
    """The settings that a sweep may name. ``kinds``: its algorithms and optimizers."""

    kinds: tuple[type[Any], ...]
    partitions: tuple[str, ...]

    @property
    def amounts(self) -> set[str]:
        """What the numbers of the partitions are called."""
        return {KINDS[kind].amount for kind in self.partitions} - {""}

    @classmethod
    def of(cls, base: Mapping[str, Any], axes: Axes) -> Names:
        """Those of a sweep. ``UsageError`` for an algorithm or a partition that is unknown."""

        def values(name: str) -> list[Any]:
            return list(axes.get(name, [base[name]] if name in base else []))

        algorithms = [algorithm_named(name) for name in values("algorithm")]
        optimizers = [OPTIMIZERS[name] for name in values("server_optimizer") if name in OPTIMIZERS]
        partitions = [parse(name)[0] for name in values("partition") if name != NONE]
        return cls((*algorithms, *optimizers), tuple(dict.fromkeys(partitions)))

    def find(self, name: str) -> str:
        """The whole name: ``algorithm.mu`` for ``mu``. ``UsageError`` if it may be two things."""
        if name in _OF_FLEETS or name in OF_RUNS or name in ("algorithm", "server_optimizer"):
            return name
        group, dot, _ = name.partition(".")
        if dot and group in ("algorithm", "partition"):
            return name
        of_algorithm = any(name in fields(kind) for kind in self.kinds)
        if of_algorithm and name in self.amounts:
            raise UsageError(
                f"the setting {name} may be two",
                why="the partition and an algorithm both have one",
                repair=f"write partition.{name} or algorithm.{name}",
            )
        return f"{'partition' if name in self.amounts else 'algorithm'}.{name}"

    def refusal(self, name: str, value: Any) -> UsageError:
        """Why a setting that no run has is not taken."""
        of_kinds = {field for kind in self.kinds for field in fields(kind)}
        known = {"algorithm", "server_optimizer", "seeds", *OF_RUNS, *_OF_FLEETS, *self.amounts}
        those = [kind.name for kind in self.kinds]
        those += [f"the partition {kind}" for kind in self.partitions]
        has = f"neither {' nor '.join(those)} has it" if those[1:] else f"{those[0]} has none"
        return UsageError(
            f"there is no setting {name}={text(value)} here",
            why=has,
            repair=f"choose from {', '.join(sorted((known | of_kinds) - {name}))}",
        )


def algorithm_named(name: str) -> type[FedAvg]:
    """The algorithm of that name. Raises ``UsageError``."""
    if name not in ALGORITHMS:
        raise UsageError(
            f"algorithm = {name}",
            why="there is no such algorithm",
            repair=f"choose one of {', '.join(ALGORITHMS)}",
        )
    return ALGORITHMS[name]


def fields(kind: type[Any]) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(kind)]


def convert(whole: str, name: str, value: Any) -> Any:
    """A value as its setting has it; texts become numbers. Raises ``UsageError``."""
    hint = _hint(whole)
    if hint is None:
        return value
    try:
        if hint is float and isinstance(value, str):
            return float(value)  # it reads ".1" and "inf", which JSON does not
        return msgspec.convert(value, hint, strict=False)
    except ValueError:
        raise UsageError(
            f"{name} = {value}", why=f"it must be {_wanted(hint)}", repair=f"change {name}"
        ) from None


def _wanted(hint: Any) -> str:
    plain = {float: "a number", int: "a whole number", bool: "true or false", str: "a name"}
    if hint in plain:
        return plain[hint]
    parts = typing.get_args(hint)
    return " or ".join(str(part) if isinstance(part, str) else _wanted(part) for part in parts)


def _hint(whole: str) -> Any:
    """The type of a setting, None where any will do."""
    group, dot, name = whole.partition(".")
    if not dot:
        names = {"algorithm": str, "server_optimizer": Literal[NONE, *OPTIMIZERS]}
        return (_OF_FLEETS | OF_RUNS | names)[whole]
    if group == "partition":
        return _OF_PARTITIONS.get(name)
    if name == "delta_c":  # topk has its share with it
        return str
    for kind in (*ALGORITHMS.values(), *OPTIMIZERS.values()):
        if name in fields(kind):
            return typing.get_type_hints(kind)[name]
    return None


def text(value: Any) -> str:
    """A setting's value as the command would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, (list, tuple)):
        return ",".join(map(text, value))
    return str(value)
