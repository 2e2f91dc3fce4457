"""Data with few positives: card transactions with frauds, and thyroids with a disease.

Features are put to mean 0 and deviation 1 by what is trained on, of all clients together.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.evidence.data import Pool
from kellet.sdk.errors import DataError, UsageError

__all__ = ["FRAUD_FEATURES", "SKEWED_BY", "detection", "features"]

KEPT = Path(__file__).parents[2] / "examples" / "data"

F32 = NDArray[np.float32]

FRAUD_FEATURES = (
    "amount",
    "weekend",
    "night",
    *(f"customer's {what}, {days} d" for days in (1, 7, 30) for what in ("number", "mean")),
    *(f"terminal's {what}, {days} d" for days in (1, 7, 30) for what in ("number", "risk")),
)
# The feature whose ranges feature skew shares out, and what it is.
SKEWED_BY = {"fraud": (0, "the amount"), "annthyroid": (0, "the age")}


@cache
def detection(name: str) -> Pool:
    """Return the data ``fraud`` or ``annthyroid``; y is 1 for a positive.

    ``fraud``: transactions of days 0 to 6 are trained on, those of days 14 to 20 judged. A week
    lies between, as the handbook has it: frauds are known a week later. ``annthyroid``: the
    first 3,772 persons are trained on and the other 3,428 judged, as UCI shares them out.
    """
    if name not in SKEWED_BY:
        raise UsageError(f"no data {name!r}", repair=f"choose one of {', '.join(SKEWED_BY)}")
    x, y, judged = _fraud() if name == "fraud" else _annthyroid()
    trained = x[~judged].astype(np.float64)
    scaled = ((x - trained.mean(axis=0)) / trained.std(axis=0)).astype(np.float32)
    return Pool(scaled[~judged], y[~judged], (scaled[judged], y[judged]))


def features(columns: dict[str, NDArray[np.int64]]) -> F32:
    """Return the handbook's features, float32 [n, 15], of the integers that fraud.npz holds.

    ``FRAUD_FEATURES`` names them. A terminal that has seen nothing has no risk.
    """
    found = [columns["cents"] / 100, columns["flags"] & 1, columns["flags"] >> 1]
    for days in (1, 7, 30):
        number = columns[f"customer_{days}"]
        found += [number, columns[f"customer_cents_{days}"] / (100 * number)]
    for days in (1, 7, 30):
        number = columns[f"terminal_{days}"]
        found += [number, columns[f"terminal_frauds_{days}"] / np.maximum(number, 1)]
    return np.stack(found, axis=1).astype(np.float32)


def _fraud() -> tuple[F32, NDArray[np.int64], NDArray[np.bool_]]:
    columns = {name: column.astype(np.int64) for name, column in _kept("fraud.npz").items()}
    return features(columns), columns["fraud"], columns["test"] == 1


def _annthyroid() -> tuple[F32, NDArray[np.int64], NDArray[np.bool_]]:
    kept = _kept("annthyroid.npz")
    return kept["x"], kept["y"].astype(np.int64), np.arange(len(kept["y"])) >= 3772


def _kept(file: str) -> dict[str, NDArray[Any]]:
    try:
        with np.load(KEPT / file, allow_pickle=False) as stored:
            return dict(stored)
    except FileNotFoundError:
        raise DataError(
            f"there is no {KEPT / file}",
            why="these data are in a source checkout alone",
            repair="run this from a checkout; examples/data/README.md says how it was made",
        ) from None
