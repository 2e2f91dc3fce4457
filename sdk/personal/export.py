"""A device's own model, out of its state directory, for whoever wants to use it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.blobs import BlobCache
from kellet.sdk.durable import Database
from kellet.sdk.errors import StorageError
from kellet.sdk.plan import Plan
from kellet.sdk.shelf import Shelf
from kellet.sdk.store import FORMAT

__all__ = ["Own", "read_own"]

F32 = NDArray[np.float32]

_TRAIN = (
    "let the device take part in a round that announces one (kellet server --personal ditto:0.1)"
)


@dataclass(frozen=True)
class Own:
    """A device's model as it stood after ``round``: float32 [n_params] of ``plan``."""

    plan: Plan
    round: int
    model: F32


def read_own(state: Path | str) -> Own:
    """The model that a device trained last, from its ``state`` directory; it may be running.

    Nothing is written. Raises ``StorageError`` where there is no device's state, or no model
    of its own in it, ``PlanError`` for a damaged plan.
    """
    folder = Path(state)
    path = folder / "device.db"
    if not path.is_file():
        raise StorageError(
            f"there is no device's state in {folder}",
            why=f"{path.name} is not there",
            repair="give the --state directory of a device",
        )
    with closing(Database.reading(path, FORMAT)) as database:
        shelf = Shelf(database)
        for plan_id in shelf.plans():
            stored = shelf.find(plan_id)
            assert stored is not None
            update: F32 = np.empty(stored.n, np.float32)
            stored.read_into(update)
            plan = _plan(folder, plan_id)
            return Own(plan, stored.round, plan.completed(update))
    raise StorageError(
        f"the device of {folder} has no model of its own",
        why="none was trained yet",
        repair=_TRAIN,
    )


def _plan(folder: Path, plan_id: bytes) -> Plan:
    file = BlobCache(folder / "plans").file(plan_id)
    if file is None:
        raise StorageError(
            f"the plan {plan_id.hex()[:12]} is not in {folder / 'plans'}",
            why="it was removed, or is damaged",
            repair="let the device take part in a round, which brings it again",
        )
    return Plan.open(file, digest=plan_id)
