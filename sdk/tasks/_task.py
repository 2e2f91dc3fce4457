"""What a demo task is, and how its users are shared out."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kellet.sdk.errors import DataError, UsageError

__all__ = ["DEFAULT_SEED", "TEST_USERS", "Arrays", "Split", "Task", "split", "users_of"]

DEFAULT_SEED = 0
TEST_USERS = 6

Arrays = tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.int64]]]


@dataclass(frozen=True)
class Task:
    """A data set with people in it, and the built-in plan that learns it.

    ``load_user(user)`` returns that person's (x, y) alone: x float32
    [n, *input], y int64 [n]. ``label_names`` are the classes in order, and
    ``columns`` names the first axis of an input.
    """

    name: str
    plan_name: str
    users: tuple[int, ...]
    load_user: Callable[[int], Arrays]
    label_names: tuple[str, ...]
    columns: tuple[str, ...]

    def load(self, users: Iterable[int]) -> Arrays:
        """Return the rows of several users, one user after the other."""
        parts = [self.load_user(user) for user in users]
        if not parts:
            raise UsageError(
                f"no users of the task {self.name!r} were named",
                why="there is nothing to load",
                repair=f"name some of {self.users[0]} to {self.users[-1]}",
            )
        return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


@dataclass(frozen=True)
class Split:
    """Who is on which device, and who is kept aside for the test."""

    devices: Mapping[str, tuple[int, ...]]
    test_users: tuple[int, ...]


def split(task: Task, devices: int, seed: int = DEFAULT_SEED) -> Split:
    """Keep six users for the test and share the others out among ``devices``.

    Devices are called ``device-1``, ``device-2`` and so on; their numbers of
    users differ by one at most. The order comes from SHA-256 of the seed, so a
    seed means the same split on every machine and release. Raises
    ``UsageError`` unless each device gets a user.
    """
    trainers = len(task.users) - TEST_USERS
    if not 1 <= devices <= trainers:
        raise UsageError(
            f"{devices} devices cannot share the task {task.name!r}",
            why=f"it has {trainers} users to train on, and each device needs one",
            repair=f"ask for 1 to {trainers} devices",
        )

    def rank(user: int) -> bytes:
        return hashlib.sha256(f"{task.name}/{seed}/{user}".encode()).digest()

    order = sorted(task.users, key=rank)
    rest = order[TEST_USERS:]
    return Split(
        devices={f"device-{i + 1}": tuple(sorted(rest[i::devices])) for i in range(devices)},
        test_users=tuple(sorted(order[:TEST_USERS])),
    )


def users_of(device: str) -> list[int]:
    """Return the users whose data the device ``device`` owns.

    They are those in the environment variable ``KELLET_DATA_USERS`` (such as
    ``3,7,12``), or user 7 for a device called ``user-7``. Raises ``DataError``.
    """
    named = os.environ.get("KELLET_DATA_USERS", "").strip()
    if named:
        if not re.fullmatch(r"\d+(\s*,\s*\d+)*", named):
            raise DataError(
                f"KELLET_DATA_USERS is {named!r}",
                why="it holds user numbers with commas between them",
                repair="set it like KELLET_DATA_USERS=3,7,12",
            )
        return [int(user) for user in named.split(",")]
    own = re.fullmatch(r"user-(\d+)", device)
    if own:
        return [int(own[1])]
    raise DataError(
        f"it is not known whose data the device {device!r} owns",
        why="KELLET_DATA_USERS is not set and the device is not called user-NUMBER",
        repair="set KELLET_DATA_USERS=3,7,12, or name the device user-7",
    )
