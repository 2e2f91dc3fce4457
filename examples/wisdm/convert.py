"""Make sdk/tasks/wisdm.npz from the table of WISDM v1.1.

    python examples/wisdm/convert.py wisdm_v11_36.npz sdk/tasks/wisdm.npz

The source holds the transformed WISDM v1.1 data as arrays: ``x`` [n, 43] with
NaN where a peak distance is missing, ``y`` [n] activities, ``user`` [n],
``cols`` and ``activity`` names.
"""

from __future__ import annotations

import sys

import numpy as np

from kellet.sdk.tasks import split, task
from kellet.sdk.tasks._wisdm import ACTIVITIES, COLUMNS


def main(source: str, target: str) -> None:
    with np.load(source, allow_pickle=False) as table:
        x, y, user = table["x"].astype(np.float32), table["y"], table["user"]
        assert tuple(table["cols"]) == COLUMNS
        assert tuple(table["activity"]) == ACTIVITIES
    trainers = x[~np.isin(user, split(task("wisdm"), 1).test_users)]
    # Where a window has no peaks, their distance is missing.
    missing = np.isnan(x)
    x[missing] = np.broadcast_to(np.nanmean(trainers, axis=0), x.shape)[missing]
    trainers = x[~np.isin(user, split(task("wisdm"), 1).test_users)].astype(np.float64)
    deviation = trainers.std(axis=0)
    scale = np.where(deviation == 0, 1.0, deviation)
    np.savez_compressed(
        target,
        x=x,
        y=y.astype(np.uint8),
        user=user.astype(np.uint8),
        mean=trainers.mean(axis=0).astype(np.float32),
        scale=scale.astype(np.float32),
    )
    print(f"{len(x)} windows of {len(np.unique(user))} users, {missing.sum()} values filled")


if __name__ == "__main__":
    main(*sys.argv[1:])
