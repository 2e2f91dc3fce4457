"""WISDM v1.1: six activities from the accelerometers of 36 phones.

5,418 windows of ten seconds, 43 features each, from "Activity Recognition
using Cell Phone Accelerometers" by J. R. Kwapisz, G. M. Weiss and S. A. Moore,
SensorKDD 2010; ``WISDM_readme.txt`` beside the data says how it may be used.

``wisdm.npz`` holds the features as published, except that the 615 missing
peak distances are filled with their column's mean, and the constants that
scale each column: its mean and standard deviation over the users who train
under the default seed, where a deviation of zero counts as 1.
``examples/wisdm/convert.py`` made the file.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from kellet.sdk.errors import DataError
from kellet.sdk.tasks._task import Arrays, Task

__all__ = ["ACTIVITIES", "COLUMNS", "wisdm_task"]

ACTIVITIES = ("Walking", "Jogging", "Upstairs", "Downstairs", "Sitting", "Standing")
COLUMNS = (
    *(f"{axis}{bin_}" for axis in "XYZ" for bin_ in range(10)),
    *("XAVG", "YAVG", "ZAVG"),
    *("XPEAK", "YPEAK", "ZPEAK"),
    *("XABSOLDEV", "YABSOLDEV", "ZABSOLDEV"),
    *("XSTANDDEV", "YSTANDDEV", "ZSTANDDEV"),
    "RESULTANT",
)
_USERS = tuple(range(1, 37))


def wisdm_task() -> Task:
    """Return the WISDM task, whose data ships with the package."""
    return Task("wisdm", "wisdm", _USERS, _load_user, ACTIVITIES, COLUMNS)


def _load_user(user: int) -> Arrays:
    x, y, users = _all_rows()
    mine = users == user
    if not mine.any():
        raise DataError(
            f"WISDM has no user {user}", why="its users are 1 to 36", repair="name one of them"
        )
    return x[mine], y[mine]


@cache
def _all_rows() -> tuple[
    np.ndarray[Any, np.dtype[np.float32]],
    np.ndarray[Any, np.dtype[np.int64]],
    np.ndarray[Any, np.dtype[np.int64]],
]:
    file = resources.files("kellet.sdk.tasks") / "wisdm.npz"
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        x = (stored["x"] - stored["mean"]) / stored["scale"]
        return x.astype(np.float32), stored["y"].astype(np.int64), stored["user"].astype(np.int64)
