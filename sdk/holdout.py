"""A device's own hold-out: samples it never trains on, to judge the models it receives."""

from __future__ import annotations

import hashlib

import numpy as np

from kellet.sdk.errors import DataError
from kellet.sdk.trainer import Data

__all__ = ["split_holdout"]


def split_holdout(data: Data, fraction: float, device: str) -> tuple[Data, Data | None]:
    """(training samples, hold-out) with ``floor(fraction * n)`` samples held out.

    The choice depends on the device's name and n alone, so that no sample moves
    between the two over restarts. ``DataError`` where the fraction leaves either empty.
    """
    if fraction == 0:
        return data, None
    held = int(fraction * len(data))
    if not 0 < held < len(data):
        raise DataError(
            f"a hold-out of {fraction:g} of {len(data)} samples",
            why="both the hold-out and the training samples must keep one at least",
            repair="give more data, or holdout=0",
        )
    key = int.from_bytes(hashlib.sha256(f"holdout/{device}".encode()).digest()[:16], "little")
    order = np.random.Generator(np.random.Philox(key=key)).permutation(len(data))
    out, rest = np.sort(order[:held]), np.sort(order[held:])
    return Data(data.x[rest], data.y[rest]), Data(data.x[out], data.y[out])
