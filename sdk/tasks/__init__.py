"""The demo's tasks: real people's data, kept apart by person.

`wisdm` and `har` serve as ``--data kellet.sdk.tasks:wisdm``.
"""

from __future__ import annotations

import os

from kellet.sdk.errors import UsageError
from kellet.sdk.tasks._har import har_task
from kellet.sdk.tasks._task import DEFAULT_SEED, Arrays, Split, Task, split, users_of
from kellet.sdk.tasks._wisdm import wisdm_task

__all__ = ["DEFAULT_SEED", "TASKS", "Split", "Task", "har", "split", "task", "wisdm"]

TASKS = ("wisdm", "har")


def task(name: str, data_dir: str | os.PathLike[str] | None = None) -> Task:
    """Return the task ``name``: "wisdm" or "har".

    ``data_dir`` says where HAR's files are; WISDM ships with the package.
    Raises ``UsageError`` for another name, ``DataError`` where data is missing.
    """
    if name == "wisdm":
        return wisdm_task()
    if name == "har":
        return har_task(data_dir)
    raise UsageError(
        f"there is no task {name!r}", why="it is not built in", repair=f"one of: {', '.join(TASKS)}"
    )


def wisdm(device: str) -> Arrays:
    """Return the WISDM data that ``device`` owns; see `users_of`."""
    return wisdm_task().load(users_of(device))


def har(device: str) -> Arrays:
    """Return the HAR data that ``device`` owns; see `users_of`."""
    return har_task().load(users_of(device))
