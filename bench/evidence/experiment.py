"""What an experiment is: cells that are worked once, and a page and a figure of all of them.

A module exports one, under its name in ``EXPERIMENTS``:

    class Cell(experiment.Cell, frozen=True, kw_only=True):
        algorithm: str
        rounds: int = 100

        def __str__(self) -> str:
            return f"{self.algorithm}, {self.rounds} rounds"

    EXPERIMENT = Experiment("momentum", "Momentum", Cell, cells, work, page, figure)

``cells(full)`` lists them, in the order they are worked; ``work(cell)`` runs in any process and
returns what JSON can hold. A cell's fields and its plan are all that ``work`` may depend on: a
kept result is taken for that cell's as long as these are the same.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from bench.evidence.plans import source
from kellet.sdk.plan import Plan

__all__ = ["EXPERIMENTS", "Cell", "Experiment", "Found", "Results", "load", "marker"]

# Name -> module, one a line.
EXPERIMENTS: dict[str, str] = {
    "collapse": "bench.evidence.collapse",
    "dirichlet": "bench.evidence.dirichlet",
    "family": "bench.evidence.family",
    "momentum": "bench.evidence.momentum",
    "personal": "bench.evidence.personal",
    "quadratics": "bench.evidence.quadratics",
    "scaffold_rounds": "bench.evidence.scaffold_rounds",
    "stragglers": "bench.evidence.stragglers",
    "text": "bench.evidence.text_task",
}

Found = dict[str, Any]


class Cell(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run and its settings. ``plan``: what ``plans.source`` takes; empty where none is used."""

    plan: str = ""

    def __str__(self) -> str:
        settings = msgspec.structs.asdict(self).items()
        return ", ".join(f"{name} {value}" for name, value in settings if name != "plan")


C = TypeVar("C", bound=Cell)


@dataclass(frozen=True)
class Results(Generic[C]):
    """What a run came to. ``found``: by cell, in the order of ``cells``.

    ``command`` is what wrote it, ``seconds`` what the cells took of one core, and ``where`` says
    when and on what. ``missing``: how many cells were not worked yet, where a page is written of
    what there is.
    """

    command: str
    where: str
    seconds: float
    found: dict[C, Found]
    missing: int = 0

    def one(self, **settings: object) -> Found | None:
        """Return what came of the one cell with these settings, or None where there is none.

        Raises ``KeyError`` where there are several.
        """
        found = self.all(**settings)
        if len(found) > 1:
            raise KeyError(f"{len(found)} cells have {settings}")
        return next(iter(found.values()), None)

    def all(self, **settings: object) -> dict[C, Found]:
        """Return the cells with these settings, and what came of each."""
        return {
            cell: found
            for cell, found in self.found.items()
            if all(getattr(cell, name) == value for name, value in settings.items())
        }


@dataclass(frozen=True)
class Experiment(Generic[C]):
    """A named experiment; the module's docstring says what each part is.

    ``page(results)`` is Markdown: of the full run it is docs/evidence/<name>.md, of the quick one
    it is printed. ``figure(results, path)`` writes an SVG.
    """

    name: str
    title: str
    cell: type[C]
    cells: Callable[[bool], Sequence[C]]
    work: Callable[[C], Found]
    page: Callable[[Results[C]], str]
    figure: Callable[[Results[C], Path], None]


def load(name: str) -> Experiment[Any]:
    """Return the experiment of that name in ``EXPERIMENTS``."""
    found = importlib.import_module(EXPERIMENTS[name]).EXPERIMENT
    assert isinstance(found, Experiment)
    return found


def marker(cells: Sequence[Cell]) -> Iterator[tuple[Cell, str]]:
    """Pair each cell with 16 hex digits that stand for its settings and its plan's bytes."""
    plans: dict[str, bytes] = {"": b""}
    for cell in cells:
        if cell.plan not in plans:
            plans[cell.plan] = Plan.open(source(cell.plan)).id
        told = msgspec.json.encode(cell) + plans[cell.plan]
        yield cell, hashlib.sha256(told).hexdigest()[:16]
