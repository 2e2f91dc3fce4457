"""The data behind the tables: pools of samples to share out, and samples to judge by.

People's windows are judged by other windows of the same people. Six people kept aside, as in
the demo, answer how a model does for strangers, and who they are moves accuracy by ten points;
here the question is what a scheme costs, and that asks for little noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.errors import DataError, UsageError
from kellet.sdk.tasks import task

__all__ = ["NAMES", "Pool", "pool"]

NAMES = ("wisdm", "har", "mnist")
MNIST = Path(__file__).parents[2] / "examples" / "data" / "mnist_14.npz"

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Arrays = tuple[F32, I64]

_STRETCH = 10  # windows; one stretch in five is for the test


@dataclass(frozen=True)
class Pool:
    """``x`` float32 [n, *input] and ``y`` int64 [n] to train on, and ``test`` likewise."""

    x: F32
    y: I64
    test: Arrays


@cache
def pool(name: str) -> Pool:
    """Return the data of a task, the same each time.

    ``wisdm``: every fifth window of each of 36 people is for the test. Windows do not overlap.
    ``har``: of each of 30 people every fifth stretch of ten windows; its neighbours, which
    overlap it by half, are for neither.
    ``mnist``: at 14 x 14, [n, 1, 14, 14], from 0 to 1; its own test images.
    """
    if name == "mnist":
        return _mnist()
    if name not in NAMES:
        raise UsageError(f"no data {name!r}", repair=f"choose one of {', '.join(NAMES)}")
    parts = [task(name).load_user(user) for user in task(name).users]
    test = [judging(name, len(y)) for _, y in parts]
    train = [trained_on(name, mask) for mask in test]
    return Pool(*_joined(parts, train), _joined(parts, test))


def judging(name: str, windows: int) -> NDArray[np.bool_]:
    """Return which of one person's windows are for the test."""
    place = np.arange(windows)
    mask: NDArray[np.bool_] = (place if name == "wisdm" else place // _STRETCH) % 5 == 4
    return mask


def trained_on(name: str, test: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which are to train on: the others, and in HAR none beside a test window."""
    if name == "wisdm":
        return ~test
    near = test.copy()
    near[1:] |= test[:-1]
    near[:-1] |= test[1:]
    return ~near


def _joined(parts: list[Arrays], masks: list[NDArray[np.bool_]]) -> Arrays:
    pairs = list(zip(parts, masks, strict=True))
    return (
        np.concatenate([x[mask] for (x, _), mask in pairs]),
        np.concatenate([y[mask] for (_, y), mask in pairs]),
    )


def _mnist() -> Pool:
    try:
        with np.load(MNIST, allow_pickle=False) as stored:
            return Pool(
                _scaled(stored["x_train"]),
                stored["y_train"].astype(np.int64),
                (_scaled(stored["x_test"]), stored["y_test"].astype(np.int64)),
            )
    except FileNotFoundError:
        raise DataError(
            f"there is no {MNIST}",
            why="MNIST at 14 x 14 is in a source checkout alone",
            repair="run this from a checkout; examples/data/README.md says how it was made",
        ) from None


def _scaled(images: NDArray[np.uint8]) -> F32:
    return images[:, None].astype(np.float32) / np.float32(255)
