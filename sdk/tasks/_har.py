"""UCI HAR (HAPT): six activities from the motion sensors of 30 phones.

Windows of 2.56 s (128 samples at 50 Hz) that overlap by half, nine channels:
body acceleration and total acceleration in g, angular velocity in rad/s, from
"Transition-Aware Human Activity Recognition Using Smartphones" by J.-L.
Reyes-Ortiz et al., Neurocomputing 2015. ``HAPT_README.md`` beside the data
says how it may be used.

One file a user, so that a device reads its own and no other. A file holds the
signals once, without the overlap: int16 steps of a fixed size, as differences
in time; windows are cut here. ``examples/har/convert.py`` made the files and
measured what the steps cost: at most 0.00018 g of total and 0.00035 g of body
acceleration, and 0.00016 rad/s.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from functools import partial
from pathlib import Path

import numpy as np

from kellet.sdk.errors import DataError
from kellet.sdk.tasks._task import Arrays, Task

__all__ = ["ACTIVITIES", "CHANNELS", "HOP", "WINDOW", "cut_windows", "har_task"]

ACTIVITIES = ("Walking", "Upstairs", "Downstairs", "Sitting", "Standing", "Laying")
CHANNELS = (
    *(f"body acceleration {axis} [g]" for axis in "xyz"),
    *(f"angular velocity {axis} [rad/s]" for axis in "xyz"),
    *(f"total acceleration {axis} [g]" for axis in "xyz"),
)
WINDOW, HOP = 128, 64
_USERS = tuple(range(1, 31))


def har_task(data_dir: str | os.PathLike[str] | None = None) -> Task:
    """Return the HAR task over the files in ``data_dir``.

    Without it the directory is that in ``KELLET_DATA_DIR``, or ``examples/har``
    of a source checkout. Raises ``DataError`` where there are no such files.
    """
    folder = _folder(data_dir)
    return Task("har", "har", _USERS, partial(_load_user, folder), ACTIVITIES, CHANNELS)


def cut_windows(gyro_total_gravity: np.ndarray, lengths: np.ndarray, labels: np.ndarray) -> Arrays:
    """Return the half-overlapping windows of several segments, end to end.

    gyro_total_gravity: float32 [9, samples], angular velocity, total
    acceleration and gravity; lengths and labels: one a segment. The windows
    are [n, 9, 128]: body acceleration, angular velocity, total acceleration.
    """
    gyro, total, gravity = gyro_total_gravity.reshape(3, 3, -1)
    signal = np.concatenate([total - gravity, gyro, total])
    ends = np.cumsum(lengths)
    starts = [
        np.arange(end - length, end - WINDOW + 1, HOP)
        for end, length in zip(ends, lengths, strict=True)
    ]
    places = np.concatenate(starts)[:, None] + np.arange(WINDOW)
    x = np.ascontiguousarray(signal[:, places].transpose(1, 0, 2), np.float32)
    return x, np.repeat(labels.astype(np.int64), [len(start) for start in starts])


def _load_user(folder: Path, user: int) -> Arrays:
    if user not in _USERS:
        raise DataError(
            f"HAR has no user {user}", why="its users are 1 to 30", repair="name one of them"
        )
    path = folder / f"user_{user:02}.npz"
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as stored:
            # Differences are modulo 2^16, and so is their sum.
            steps = np.cumsum(stored["differences"], axis=1, dtype=np.int16)
            signal = steps.astype(np.float32) * stored["step"][:, None]
            return cut_windows(signal, stored["lengths"], stored["labels"])
    except FileNotFoundError:
        raise DataError(
            f"there is no {path.name} in {folder}",
            why="it holds the data of that user",
            repair="copy it there from examples/har of the source, or give the right --data-dir",
        ) from None
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read", why=str(error), repair="copy it again from examples/har"
        ) from None


def _folder(data_dir: str | os.PathLike[str] | None) -> Path:
    given = os.fspath(data_dir) if data_dir else os.environ.get("KELLET_DATA_DIR", "")
    checkout = Path(__file__).resolve().parents[2] / "examples" / "har"
    folder = Path(given) if given else checkout
    if not any(folder.glob("user_*.npz")):
        raise DataError(
            f"the HAR data is not in {folder}" if given else "the HAR data is not installed",
            why="an installed package does not hold it: it is 6 MB, one file a user",
            repair="give --data-dir DIR, or set KELLET_DATA_DIR, to examples/har of the source",
        )
    return folder
