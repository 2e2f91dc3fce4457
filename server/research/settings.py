"""Settings by name, what of them a run has, and the runs that a sweep over them comes to.

A setting is named as in the command: ``mu``, ``cohort``, ``alpha``. Where both the partition
and an algorithm have one of that name (FedDyn's alpha), it is ``partition.alpha`` and
``algorithm.alpha``; these names are always understood.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from kellet.sdk.algorithms import ALGORITHMS, FedAvg
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.spelling import codec_of
from kellet.sdk.protocol.vectors import CODECS
from kellet.server.optimizers import OPTIMIZERS, ServerOptimizer
from kellet.server.research.partitions import KINDS, LEAST, Partition, parse
from kellet.server.selection import SELECTIONS, make

__all__ = ["Axes", "Cell", "cell_of", "cells", "seeds_of", "text"]

Axes = Mapping[str, Sequence[Any]]

_OF_PARTITIONS = {"alpha": float, "percent": float, "labels": int}
_OF_FLEETS: dict[str, Any] = {"partition": str, "clients": int, "least": int, "feature": int}
_OF_RUNS: dict[str, Any] = {
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
_OF_SELECTIONS: dict[str, Any] = {
    "window": float,
    "distance": str,
    "neighbours": int,
    "threshold": float,
    "fairness": float,
    "feature_bins": int,
}
_OF_RUNS |= _OF_SELECTIONS
CLIENTS = 10  # of a partition, unless given
SHARE = 0.01  # of a change that topk sends, unless given
_NONE = "none"  # a server optimizer that there is not, and a partition


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run. ``key`` names it by what was swept; ``settings`` are those of its rows.

    ``partition`` is None where the data is not shared out by one; ``clients`` then counts
    the devices that share a task's people. ``options`` are ``simulate``'s, and a selection's
    name and settings.
    """

    key: str
    settings: dict[str, Any]
    algorithm: FedAvg
    optimizer: ServerOptimizer | None
    partition: Partition | None
    clients: int | None
    seed: int
    options: dict[str, Any]

    def arguments(self) -> dict[str, Any]:
        """What ``run`` takes beside data, algorithm, optimizer, rounds and seed."""
        options = dict(self.options)
        named = options.pop("selection", None)
        of_selection = set(_OF_SELECTIONS) - {"feature_bins"}
        given = {name: options.pop(name) for name in of_selection & options.keys()}
        if named is not None:
            options["cohort"] = make(named, options["cohort"], seed=self.seed, **given)
        return options

    @property
    def resolved(self) -> str:
        """All that makes a difference to the run, defaults included, as text."""
        return json.dumps(
            [
                self.algorithm.wire(),
                self.optimizer and self.optimizer.wire(),
                self.partition and dataclasses.asdict(self.partition),
                self.clients,
                self.seed,
                self.options,
            ],
            sort_keys=True,
            default=str,
        )


def cells(base: Mapping[str, Any], axes: Axes, seeds: Sequence[int]) -> list[Cell]:
    """The runs of a sweep: the cross product of the axes, for one seed after the other.

    ``base``: the settings that are not swept, by name. A setting that a run does not have (mu
    for FedAvg) is left out of it, and runs that become equal are one. Values may be
    texts. Raises ``UsageError`` for a name that no run has, and for a run that cannot be.
    """
    base = {"algorithm": "scaffold", **base}
    known = _Names.of(base, axes)
    names = {name: known.find(name) for name in (*base, *axes)}
    fixed = {names[name]: _convert(names[name], name, value) for name, value in base.items()}
    columns = [[(n, _convert(names[n], n, v)) for v in values] for n, values in axes.items()]
    found: dict[str, Cell] = {}
    used: set[str] = set()
    for seed in seeds:
        for point in itertools.product(*columns):
            swept = dict(point)
            settings = fixed | {names[name]: value for name, value in swept.items()}
            has, cell = _cell(settings, {n: (names[n], v) for n, v in swept.items()}, seed)
            used |= has
            found.setdefault(cell.resolved, cell)
    for name, whole in names.items():
        if whole not in used:
            raise known.refusal(name, axes.get(name, base.get(name)))
    return list(found.values())


def cell_of(
    algorithm: FedAvg, optimizer: ServerOptimizer | None, settings: Mapping[str, Any], seed: int
) -> Cell:
    """The one run of an algorithm and an optimizer that are there. Raises ``UsageError``."""
    base = {**settings, "algorithm": algorithm.name}
    known = _Names.of(base, {})
    whole = {known.find(name): _convert(known.find(name), name, v) for name, v in base.items()}
    whole = _shared(whole)
    used, cell = _assembled(algorithm, optimizer, whole, {}, seed, set())
    for name, value in base.items():
        if known.find(name) not in used:
            raise known.refusal(name, value)
    return cell


def seeds_of(values: Sequence[int]) -> list[int]:
    """The seeds of an axis ``seeds``: 0, 1, ... for a single number of them, else the list."""
    seeds = list(range(values[0])) if len(values) == 1 else list(values)
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise UsageError(
            f"seeds = {','.join(map(str, values))}",
            why="it is one number, of seeds from 0 on, or a list of different ones",
            repair="write seeds=3, or seeds=0,5,7",
        )
    return seeds


@dataclass(frozen=True)
class _Names:
    """The settings that a sweep may name. ``kinds``: its algorithms and optimizers."""

    kinds: tuple[type[Any], ...]
    partitions: tuple[str, ...]

    @property
    def amounts(self) -> set[str]:
        return {KINDS[kind].amount for kind in self.partitions} - {""}

    @classmethod
    def of(cls, base: Mapping[str, Any], axes: Axes) -> _Names:
        def values(name: str) -> list[Any]:
            return list(axes.get(name, [base[name]] if name in base else []))

        algorithms = [_algorithm(name) for name in values("algorithm")]
        optimizers = [OPTIMIZERS[name] for name in values("server_optimizer") if name in OPTIMIZERS]
        partitions = [parse(name)[0] for name in values("partition") if name != _NONE]
        return cls((*algorithms, *optimizers), tuple(dict.fromkeys(partitions)))

    def find(self, name: str) -> str:
        """The whole name: ``algorithm.mu`` for ``mu``. ``UsageError`` if it may be two things."""
        if name in _OF_FLEETS or name in _OF_RUNS or name in ("algorithm", "server_optimizer"):
            return name
        group, dot, _ = name.partition(".")
        if dot and group in ("algorithm", "partition"):
            return name
        of_algorithm = any(name in _fields(kind) for kind in self.kinds)
        if of_algorithm and name in self.amounts:
            raise UsageError(
                f"the setting {name} may be two",
                why="the partition and an algorithm both have one",
                repair=f"write partition.{name} or algorithm.{name}",
            )
        return f"{'partition' if name in self.amounts else 'algorithm'}.{name}"

    def refusal(self, name: str, value: Any) -> UsageError:
        """Why a setting that no run has is not taken."""
        fields = {field for kind in self.kinds for field in _fields(kind)}
        known = {"algorithm", "server_optimizer", "seeds", *_OF_RUNS, *_OF_FLEETS, *self.amounts}
        kinds = " nor ".join([kind.name for kind in self.kinds])
        partitions = "".join(f" nor the partition {kind}" for kind in self.partitions)
        return UsageError(
            f"there is no setting {name}={text(value)} here",
            why=f"neither {kinds}{partitions} has it",
            repair=f"choose from {', '.join(sorted((known | fields) - {name}))}",
        )


def _cell(
    settings: Mapping[str, Any], swept: Mapping[str, tuple[str, Any]], seed: int
) -> tuple[set[str], Cell]:
    """The whole names of the settings that made a difference, and the run."""
    try:
        settings = _shared(settings)
        algorithm, optimizer, hyper = _methods(settings)
        used, cell = _assembled(algorithm, optimizer, settings, swept, seed, hyper)
        return used | hyper, cell
    except UsageError as error:
        at = " ".join(f"{name}={text(value)}" for name, (_, value) in swept.items())
        if not at:
            raise
        raise UsageError(f"{error.what} ({at})", why=error.why, repair=error.repair) from None


def _assembled(  # noqa: PLR0917
    algorithm: FedAvg,
    optimizer: ServerOptimizer | None,
    settings: Mapping[str, Any],
    swept: Mapping[str, tuple[str, Any]],
    seed: int,
    hyper: set[str],
) -> tuple[set[str], Cell]:
    """What of the settings is used beside the methods, by its whole name, and the run."""
    partition, clients, of_fleet = _fleet(settings)
    options, of_run = _options(settings, algorithm)
    used = {"algorithm", "server_optimizer", "partition"} | of_fleet | of_run
    shown: dict[str, Any] = {"algorithm": algorithm.name}
    if optimizer:
        shown["server_optimizer"] = optimizer.name
    if partition:
        by_number = any(whole.startswith("partition.") for whole, _ in swept.values())
        shown["partition"] = partition.kind if by_number else str(partition)
    key = []
    for name, (whole, value) in swept.items():
        if whole in used or whole in hyper:
            shown[name] = value
            key.append(f"{name}={text(value)}")
    shown["seed"] = seed
    cell = Cell(
        key=" ".join([*key, f"seed={seed}"]),
        settings=shown,
        algorithm=algorithm,
        optimizer=optimizer,
        partition=partition,
        clients=clients,
        seed=seed,
        options=options,
    )
    return used, cell


def _shared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the share of ``topk:SHARE``, wherever it stands, as one of its own."""
    found = dict(settings)
    of_delta_c = ("derived", *CODECS)
    for setting, whole, known in (
        ("uplink", "uplink", CODECS),
        ("delta_c", "algorithm.delta_c", of_delta_c),
    ):
        text = found.get(whole, "topk")
        if text == "topk":  # whose share is a setting of its own, or the usual
            continue
        found[whole], share = codec_of(setting, text, known)
        if share and found.setdefault("share", share) != share:
            raise UsageError(
                f"{setting} = {text}",
                why=f"share = {found['share']:g} is given as well, and all vectors have one",
                repair="give them the same",
            )
    return found


def _methods(settings: Mapping[str, Any]) -> tuple[FedAvg, ServerOptimizer | None, set[str]]:
    kind = _algorithm(settings["algorithm"])
    named = settings.get("server_optimizer", _NONE)
    by = None if named == _NONE else OPTIMIZERS[named]
    of_kind: dict[str, Any] = {}
    of_optimizer: dict[str, Any] = {}
    used = set()
    for whole, value in settings.items():
        group, _, name = whole.partition(".")
        if group != "algorithm" or not name:
            continue
        if by is not None and name in _fields(by):  # server_lr is the optimizer's where one is
            of_optimizer[name] = value
        elif name in _fields(kind):
            of_kind[name] = value
        else:
            continue
        used.add(whole)
    return kind(**of_kind), by(**of_optimizer) if by else None, used


def _fleet(settings: Mapping[str, Any]) -> tuple[Partition | None, int | None, set[str]]:
    text, clients = settings.get("partition", _NONE), settings.get("clients")
    if text == _NONE:
        return None, clients, {"clients"}
    clients = CLIENTS if clients is None else clients
    kind, amount = parse(text)
    name = f"partition.{KINDS[kind].amount}"
    if name in settings:
        if amount is not None:
            raise UsageError(
                f"partition = {text}",
                why=f"{name} is given as well",
                repair=f"write {kind} alone, or leave out {name}",
            )
        amount = float(settings[name])
    partition = Partition(
        kind=kind,
        amount=amount,
        clients=clients,
        least=settings.get("least", LEAST),
        column=settings.get("feature"),
    )
    used = {name, "clients"} if KINDS[kind].amount else set()
    used |= {"least"} if KINDS[kind].drawn else set()
    return partition, None, used | ({"feature"} if kind == "feature" else set())


def _options(settings: Mapping[str, Any], algorithm: FedAvg) -> tuple[dict[str, Any], set[str]]:
    options = {name: settings[name] for name in _OF_RUNS if name in settings}
    if options.get("cohort") == "all":
        del options["cohort"]
    if "selection" in options and "cohort" not in options:
        raise UsageError(
            f"selection = {options['selection']}",
            why="it is not said how many clients a round asks",
            repair="give a cohort",
        )
    used = set(_OF_RUNS)
    kind = SELECTIONS.get(options.get("selection", ""))
    has = {
        "feature_bins" if name == "features" else name for name in (_fields(kind) if kind else ())
    }
    for name in _OF_SELECTIONS.keys() - has:
        options.pop(name, None)
        used.discard(name)
    if "topk" in (options.get("uplink"), getattr(algorithm, "delta_c", "")):
        options.setdefault("share", SHARE)
    else:
        options.pop("share", None)
        used.discard("share")
    if not algorithm.controls:
        options.pop("shift", None)
        used.discard("shift")
    return options, used


def _algorithm(name: str) -> type[FedAvg]:
    if name not in ALGORITHMS:
        raise UsageError(
            f"algorithm = {name}",
            why="there is no such algorithm",
            repair=f"choose one of {', '.join(ALGORITHMS)}",
        )
    return ALGORITHMS[name]


def _fields(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _convert(whole: str, name: str, value: Any) -> Any:
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
        names = {"algorithm": str, "server_optimizer": Literal[_NONE, *OPTIMIZERS]}
        return (_OF_FLEETS | _OF_RUNS | names)[whole]
    if group == "partition":
        return _OF_PARTITIONS.get(name)
    if name == "delta_c":  # topk has its share with it
        return str
    for kind in (*ALGORITHMS.values(), *OPTIMIZERS.values()):
        if name in _fields(kind):
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
