"""A device's data, where only its shape matters."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

__all__ = ["SHAPE", "drawn", "of_shape"]

SHAPE = "KELLET_BENCH_SHAPE"  # "1,14,14/10": the input's shape, and how many classes
SAMPLES = 512


def drawn(_device: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return normal samples of the shape in the environment."""
    shape, _, classes = os.environ[SHAPE].partition("/")
    return of_shape([int(axis) for axis in shape.split(",")], int(classes))


def of_shape(shape: list[int], classes: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return ``SAMPLES`` normal samples and labels, the same each time."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, *shape), np.float32)
    return x, rng.integers(0, classes, SAMPLES)
