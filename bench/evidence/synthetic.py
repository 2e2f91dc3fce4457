"""The FedProx paper's synthetic data, drawn anew, bit for bit as its authors' program draws them.

Li et al., "Federated Optimization in Heterogeneous Networks", arXiv 1812.06127, section 5.1 and
appendix C.1. Device k labels with a model of its own, y = argmax(W_k x + b_k). The entries of
W_k and b_k are around u_k ~ N(0, alpha), those of x around v_k ~ N(B_k, 1), B_k ~ N(0, beta):
alpha says how far the models differ, beta how far the data do. Both are 1 here, and the seed 0.
"""

from __future__ import annotations

import hashlib
import random
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.errors import DataError

__all__ = ["Devices", "synthetic", "together"]

DEVICES, FEATURES, CLASSES = 30, 60, 10
ALPHA = BETA = 1
# SHA-256 of the bytes of the devices' samples, x and y of one after the other.
DIGEST = "a0037f2189f0bb32b80b3e519050c2f15bd667ff87eb821ce9d97590d857a72c"

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Samples = tuple[F32, I64]
Devices = dict[str, Samples]


@cache
def synthetic() -> tuple[Devices, Devices]:
    """Return each device's samples to train on, and those to judge by, the last tenth.

    x float32 [n, 60], y int64 [n]; 50 to 5,162 samples a device. Raises ``DataError`` where the
    draw is another than it was: a library's generator has changed.
    """
    # The authors' program draws by NumPy's old generator and shuffles by Python's.
    drawn, shuffler = np.random.RandomState(0), random.Random(0)
    sizes = drawn.lognormal(4, 2, DEVICES).astype(int) + 50
    of_model, of_data = drawn.normal(0, ALPHA, DEVICES), drawn.normal(0, BETA, DEVICES)
    centres = [drawn.normal(b, 1, FEATURES) for b in of_data]
    spread = np.sqrt(np.power(np.arange(1.0, FEATURES + 1), -1.2))  # of each feature
    digest = hashlib.sha256()
    trained: Devices = {}
    judged: Devices = {}
    for k in range(DEVICES):
        weights = drawn.normal(of_model[k], 1, (FEATURES, CLASSES))
        bias = drawn.normal(of_model[k], 1, CLASSES)
        x = centres[k] + drawn.standard_normal((sizes[k], FEATURES)) * spread
        y = np.argmax(x @ weights + bias, axis=1)
        order = list(range(sizes[k]))
        shuffler.shuffle(order)
        samples = x[order].astype(np.float32), y[order].astype(np.int64)
        for array in samples:
            digest.update(array.tobytes())
        cut, name = int(0.9 * sizes[k]), f"device-{k:02}"
        trained[name] = samples[0][:cut], samples[1][:cut]
        judged[name] = samples[0][cut:], samples[1][cut:]
    if digest.hexdigest() != DIGEST:
        raise DataError(
            "the synthetic data are not what they were",
            why=f"they come to {digest.hexdigest()}, so a library draws otherwise",
            repair="use a NumPy and a Python whose generators draw as they did",
        )
    return trained, judged


def together(devices: Devices) -> Samples:
    """Return all samples of the devices, one device after the other."""
    x, y = zip(*devices.values(), strict=True)
    return np.concatenate(x), np.concatenate(y)
