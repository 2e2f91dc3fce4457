"""What of its settings a run has, and the runs that a sweep over them comes to."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.spelling import codec_of
from kellet.sdk.protocol.vectors import CODECS
from kellet.server.optimizers import OPTIMIZERS, ServerOptimizer
from kellet.server.research.names import (
    NONE,
    OF_RUNS,
    OF_SELECTIONS,
    Axes,
    Names,
    algorithm_named,
    convert,
    fields,
    text,
)
from kellet.server.research.partitions import KINDS, LEAST, Partition, parse
from kellet.server.selection import SELECTIONS, make

__all__ = ["Cell", "cell_of", "cells", "seeds_of"]

CLIENTS = 10  # of a partition, unless given
SHARE = 0.01  # of a change that topk sends, unless given


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
        of_selection = set(OF_SELECTIONS) - {"feature_bins"}
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
    known = Names.of(base, axes)
    names = {name: known.find(name) for name in (*base, *axes)}
    fixed = {names[name]: convert(names[name], name, value) for name, value in base.items()}
    columns = [[(n, convert(names[n], n, v)) for v in values] for n, values in axes.items()]
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
    known = Names.of(base, {})
    whole = {known.find(name): convert(known.find(name), name, v) for name, v in base.items()}
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
    kind = algorithm_named(settings["algorithm"])
    named = settings.get("server_optimizer", NONE)
    by = None if named == NONE else OPTIMIZERS[named]
    of_kind: dict[str, Any] = {}
    of_optimizer: dict[str, Any] = {}
    used = set()
    for whole, value in settings.items():
        group, _, name = whole.partition(".")
        if group != "algorithm" or not name:
            continue
        if by is not None and name in fields(by):  # server_lr is the optimizer's where one is
            of_optimizer[name] = value
        elif name in fields(kind):
            of_kind[name] = value
        else:
            continue
        used.add(whole)
    return kind(**of_kind), by(**of_optimizer) if by else None, used


def _fleet(settings: Mapping[str, Any]) -> tuple[Partition | None, int | None, set[str]]:
    text, clients = settings.get("partition", NONE), settings.get("clients")
    if text == NONE:
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
    options = {name: settings[name] for name in OF_RUNS if name in settings}
    for name, nothing in (("cohort", "all"), ("schedule", NONE), ("personal", NONE)):
        if options.get(name) == nothing:
            del options[name]
    if "selection" in options and "cohort" not in options:
        raise UsageError(
            f"selection = {options['selection']}",
            why="it is not said how many clients a round asks",
            repair="give a cohort",
        )
    used = set(OF_RUNS)
    kind = SELECTIONS.get(options.get("selection", ""))
    has = {
        "feature_bins" if name == "features" else name for name in (fields(kind) if kind else ())
    }
    for name in OF_SELECTIONS.keys() - has:
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
