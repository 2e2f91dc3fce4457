"""Make fraud.npz: the card transactions to train and to test on, every column as integers.

    python examples/data/fraud.py SOURCE.npz examples/data/fraud.npz

The source has the handbook's 15 features of 21 days of transactions as ``x`` float32 [n, 15],
with ``y`` (1: fraud) and ``day`` from 0. What comes out holds the first and the last seven days;
``bench/evidence/detection.py`` makes the features of it.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import numpy as np

# SHA-256 of the bytes of the arrays that come out, in the order in which they are stored.
DIGEST = "84668d81a9e1b490cec44904bc8f0a10cde584d63c9e1b85e9c3005a7a8119f6"

Array = np.ndarray[Any, np.dtype[Any]]


def packed(x: Array, y: Array, day: Array) -> dict[str, Array]:
    """Return the columns as integers: cents, counts, and sums over the windows instead of means."""
    cents, flags = np.rint(x[:, 0].astype(float) * 100), x[:, 1] + 2 * x[:, 2]
    columns: dict[str, Array] = {
        "cents": cents.astype(np.int32),
        "flags": flags.astype(np.uint8),  # 1: weekend, 2: night
    }
    for place, days in enumerate((1, 7, 30)):
        count, mean = x[:, 3 + 2 * place], x[:, 4 + 2 * place].astype(float)
        seen, risk = x[:, 9 + 2 * place], x[:, 10 + 2 * place].astype(float)
        columns[f"customer_{days}"] = count.astype(np.uint8)
        columns[f"customer_cents_{days}"] = np.rint(mean * count * 100).astype(np.int32)
        columns[f"terminal_{days}"] = seen.astype(np.uint8)
        columns[f"terminal_frauds_{days}"] = np.rint(risk * seen).astype(np.uint8)
    return columns | {"fraud": y.astype(np.uint8), "test": (day >= 14).astype(np.uint8)}


def main(source: str, target: str) -> None:
    with np.load(source, allow_pickle=False) as original:
        kept = (original["day"] < 7) | (original["day"] >= 14)
        columns = packed(*(original[name][kept] for name in ("x", "y", "day")))
    found = hashlib.sha256(b"".join(column.tobytes() for column in columns.values())).hexdigest()
    if found != DIGEST:
        sys.exit(f"{source} is not what it was: its columns come to {found}, not to {DIGEST}")
    np.savez_compressed(target, **columns)
    print({name: (str(column.dtype), column.shape) for name, column in columns.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
