"""Cut the power at any moment of a history, and hold what is left against what was promised."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from faults.power.history import History, state_of
from faults.power.platter import WAYS, Platter

__all__ = ["Cut", "Outcome", "cuts", "try_cuts", "wrong_databases"]


@dataclass
class Outcome:
    """``cuts`` by what was cut and how much was left; what was wrong, cut by cut."""

    cuts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


class Cut(NamedTuple):
    """``moment``: the events until then. ``hit``: the disks that lost power, of them ``way``."""

    moment: int
    hit: tuple[str, ...]
    way: str


def cuts(history: History, scratch: Path, *, count: int, seed: int) -> Iterator[Cut]:
    """Cut ``count`` times: one machine's power, or everybody's at once; the others are killed.

    When a cut is yielded, ``scratch`` holds what the next start of each finds.
    """
    luck = Random(seed)
    moments = sorted(luck.randint(1, len(history.events)) for _ in range(count))
    platter, at = Platter(), 0
    for moment in moments:
        for event in history.events[at:moment]:
            platter.take(event)
        at = moment
        hit = luck.choice([*((name,) for name in history.disks), history.disks])
        way = luck.choice(WAYS)
        shutil.rmtree(scratch, ignore_errors=True)
        for name in history.disks:
            folder = history.root / name
            (scratch / name).mkdir(parents=True)
            left = platter.after_cut(folder, way if name in hit else "all", luck)
            for path, content in left.items():
                file = scratch / name / Path(path).relative_to(folder)
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(content)
        yield Cut(moment, hit, way)


def try_cuts(
    history: History,
    scratch: Path,
    wrong: Callable[[Cut], Iterable[str]],
    *,
    count: int,
    seed: int,
) -> Outcome:
    """Cut, and collect what ``wrong`` finds."""
    outcome = Outcome()
    for cut in cuts(history, scratch, count=count, seed=seed):
        who = cut.hit[0] if len(cut.hit) == 1 else "all"
        outcome.cuts[f"{who}, {cut.way} left"] += 1
        outcome.wrong += [f"{cut}: {each}" for each in wrong(cut)]
    return outcome


def wrong_databases(history: History, scratch: Path, cut: Cut) -> Iterator[str]:
    """Databases of the machines without power that are damaged, or neither old nor new."""
    for path in history.commits:
        name = path.relative_to(history.root).parts[0]
        if name not in cut.hit:
            continue
        try:
            with closing(sqlite3.connect(scratch / path.relative_to(history.root))) as database:
                (health,) = database.execute("pragma integrity_check").fetchone()
                state = state_of(database)
        except sqlite3.DatabaseError as error:
            yield f"{name} cannot be read: {error}"
            continue
        if health != "ok":
            yield f"{name} is damaged: {health}"
        if state not in history.allowed(path, cut.moment):
            yield f"{name} is neither as before nor as after"
