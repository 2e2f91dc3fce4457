"""Make mnist_14.npz: MNIST at 14 x 14, each pixel the mean of four.

    python examples/data/mnist.py mnist.npz examples/data/mnist_14.npz

The source is ``mnist.npz`` as Keras publishes it: the four files of MNIST as
arrays ``x_train`` uint8 [60000, 28, 28], ``y_train`` uint8 [60000], ``x_test``
and ``y_test`` with 10,000 of each.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

# SHA-256 of the bytes of the four arrays that come out, in the order in which they are stored.
DIGEST = "c2de9da36bef0d9a93c630af7b28329d6831609ac9708c8ed80978ea1a28e4ab"

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


def halve(images: Pixels) -> Pixels:
    """Return [n, h/2, w/2]: the mean of each 2 x 2 square, a half rounded up.

    Four times 255 does not fit uint8, so the squares are summed in uint16.
    """
    n, height, width = images.shape
    squares = images.reshape(n, height // 2, 2, width // 2, 2).astype(np.uint16)
    return ((squares.sum(axis=(2, 4), dtype=np.uint16) + 2) >> 2).astype(np.uint8)


def digest(arrays: Mapping[str, Pixels]) -> str:
    """Return the SHA-256 of the arrays' bytes, one array after the other."""
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays.values())).hexdigest()


def main(source: str, target: str) -> None:
    with np.load(source, allow_pickle=False) as original:
        halved = {
            "x_train": halve(original["x_train"]),
            "y_train": original["y_train"],
            "x_test": halve(original["x_test"]),
            "y_test": original["y_test"],
        }
    found = digest(halved)
    if found != DIGEST:
        sys.exit(f"{source} is not MNIST as it was: its arrays come to {found}, not to {DIGEST}")
    np.savez_compressed(target, **halved)
    print({name: array.shape for name, array in halved.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
