"""Make the files user_01.npz ... user_30.npz from the raw HAPT recordings.

    python examples/har/convert.py har_uci_hapt_raw.npz examples/har

The source holds the raw 50 Hz signals of the 61 experiments end to end as
int16 steps (``acc``, ``gyro`` [samples, 3]; ``acc_scale``, ``gyro_scale``),
``experiments`` (number, user, samples) and ``segments`` (experiment, user,
activity, first and last sample counted from 1). Needs scipy.

As in the data set's own preparation, each signal passes a median filter and a
third-order Butterworth low-pass at 20 Hz, and gravity is what a second one at
0.3 Hz leaves of the acceleration. Segments of the six basic activities are
kept, cut to whole windows, and stored as int16: angular velocity in steps of
the sensor's own size, acceleration and gravity in quarters of it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from scipy.signal import butter, filtfilt, medfilt

from kellet.sdk.tasks._har import HOP, WINDOW, cut_windows

RATE = 50.0
BASIC_ACTIVITIES = range(1, 7)


def main(source: str, target: str) -> None:
    with np.load(source, allow_pickle=False) as stored:
        raw = dict(stored)
    signals = {
        int(number): filtered(raw, end - count, end)
        for (number, _, count), end in zip(
            raw["experiments"], np.cumsum(raw["experiments"][:, 2]), strict=True
        )
    }
    step = np.repeat([raw["gyro_scale"], raw["acc_scale"] / 4, raw["acc_scale"] / 4], 3)
    worst, windows, size = np.zeros(9), 0, 0
    for user in np.unique(raw["experiments"][:, 1]):
        pieces, labels = segments_of(user, raw["segments"], signals)
        signal = np.concatenate(pieces, axis=1)
        lengths = np.array([piece.shape[1] for piece in pieces], np.int32)
        steps = np.rint(signal / step[:, None])
        assert np.abs(steps).max() <= np.iinfo(np.int16).max, "a signal leaves int16"
        steps = steps.astype(np.int16)
        path = Path(target) / f"user_{user:02}.npz"
        np.savez_compressed(
            path,
            differences=np.diff(steps, axis=1, prepend=np.int16(0)),
            step=step.astype(np.float32),
            lengths=lengths,
            labels=labels,
        )
        exact, _ = cut_windows(signal, lengths, labels)
        kept, _ = cut_windows(
            steps.astype(np.float32) * step.astype(np.float32)[:, None], lengths, labels
        )
        worst = np.maximum(worst, np.abs(exact - kept).max(axis=(0, 2)))
        windows += len(kept)
        size += path.stat().st_size
    print(f"{windows} windows, {size / 1e6:.2f} MB")
    print("largest error of body acceleration, angular velocity, total acceleration:")
    print(np.array2string(worst.reshape(3, 3).max(axis=1), precision=6))


def filtered(raw: dict[str, np.ndarray], start: int, end: int) -> np.ndarray:
    """Return [9, samples]: angular velocity, total acceleration, gravity."""
    smooth, slow = butter(3, 20 / (RATE / 2)), butter(3, 0.3 / (RATE / 2))

    def clean(signal: np.ndarray, scale: np.ndarray) -> np.ndarray:
        columns = (signal[start:end] * float(scale)).T
        return np.stack([filtfilt(*smooth, medfilt(column, 3)) for column in columns])

    gyro = clean(raw["gyro"], raw["gyro_scale"])
    total = clean(raw["acc"], raw["acc_scale"])
    return np.concatenate([gyro, total, filtfilt(*slow, total, axis=1)])


def segments_of(
    user: int, segments: np.ndarray, signals: dict[int, np.ndarray]
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the user's segments, each cut to whole windows, and their labels from 0."""
    pieces, labels = [], []
    for experiment, owner, activity, first, last in segments:
        count = (last - first + 1 - WINDOW) // HOP + 1
        if owner == user and activity in BASIC_ACTIVITIES and count > 0:
            start = first - 1
            length = (count - 1) * HOP + WINDOW
            pieces.append(signals[int(experiment)][:, start : start + length])
            labels.append(activity - 1)
    return pieces, np.array(labels, np.uint8)


if __name__ == "__main__":
    main(*sys.argv[1:])
