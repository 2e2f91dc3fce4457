"""Updates as a function of gradients, start and seed: ``python -m support.update_bytes``.

Prints, as JSON, the SHA-256 of the update of each algorithm under each scheme, from gradients
that are written down. It needs NumPy and Kellet's device half, and no onnxruntime: run it on
two architectures and compare. ``tests/data/update_bytes.json`` is what it printed on x86-64.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.scripted import session_of

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.outgoing import Announced, update_of
from kellet.sdk.plan.manifest import layout
from kellet.sdk.protocol.messages import Blob, Codecs, Round
from kellet.sdk.protocol.vectors import Codec, Shapes
from kellet.sdk.store import Store
from kellet.sdk.trainer import Data, train
from kellet.sdk.uplink import Uplink

__all__ = ["CASES", "TENSORS", "digests", "numbers", "update"]

TENSORS = layout(
    [
        ("first.weight", (37, 65), "train", "mean"),
        ("first.bias", (37,), "train", "mean"),
        ("conv.weight", (8, 4, 4), "train", "mean"),
        ("last.weight", (5, 37), "train", "mean"),
        ("last.bias", (5,), "train", "mean"),
        ("mean", (4,), "buffer", "mean"),
        ("frozen", (3, 3), "frozen", "mean"),
    ]
)
SHAPES = Shapes.of(TENSORS)
_COMMON: dict[str, Any] = {"local_lr": 0.05, "lr_decay": 0.75, "batch_size": 2, "local_steps": 7}
_ALGORITHMS: dict[str, FedAvg] = {
    "fedavg": FedAvg(**_COMMON),
    "fedavg, clipped, decaying": FedAvg(clip=3.0, weight_decay=0.125, **_COMMON),
    "fedprox": FedProx(mu=0.5, **_COMMON),
    "fedprox, implicit": FedProx(mu=0.5, implicit=True, **_COMMON),
    "scaffold, derived": Scaffold(**_COMMON),
    "scaffold, derived, damped": Scaffold(control_damping=0.125, **_COMMON),
    "scaffold, q8": Scaffold(delta_c="q8", **_COMMON),
    "scaffold, option I": Scaffold(option="I", delta_c="f32", **_COMMON),
}
_HOLDINGS = {
    "f32": ("f32/1", False),
    "f32, int8 shift": ("f32/1", True),
    "w8.row": ("w8.row/1", False),
    "w8.block64": ("w8.block64/1", False),
}
_UPLINKS: tuple[tuple[Codec, bool], ...] = (("f32", False), ("q8", False), ("topk", True))


def numbers(name: str, n: int, unit: float) -> NDArray[np.float32]:
    """n float32 multiples of ``unit`` (a power of two) within 2^15 of them, from a name."""
    raw = b"".join(
        hashlib.sha256(f"{name}/{block}".encode()).digest() for block in range(-(-n // 16))
    )
    return (np.frombuffer(raw, "<i2")[:n] * np.float64(unit)).astype(np.float32)


def update(algorithm: FedAvg, scheme: str, int8_shift: bool, codec: Codec, feedback: bool) -> bytes:
    """The body of an update, as it goes into the outbox."""
    n = SHAPES.n_train
    store = Store("a", nonce=b"n" * 16)
    store.adopt(1, kernels.to_grid(numbers("c_i", n, 2**-20).astype(np.float64)))
    codecs = Codecs(
        delta_y=(codec,),
        delta_c=getattr(algorithm, "delta_c", "none"),
        feedback=feedback,
        share=0.1,
    )
    residual = numbers("residual", SHAPES.n_update, 2**-24) if feedback else None
    data = Data(np.zeros((5, 1), np.float32), np.zeros(5, np.int64))
    outcome = train(
        session_of(TENSORS, scheme, lambda step, _at: numbers(f"g{step}", n, 2**-17)),
        algorithm,
        data,
        x=numbers("x", SHAPES.n_update, 2**-16),
        shapes=SHAPES,
        c=numbers("c", n, 2**-20),
        c_i=store.control(n),
        seed=11,
        device="a",
        round_=3,
        int8_shift=int8_shift,
        uplink=Uplink.of(codecs, codec, residual),
    )
    blob = Blob(bytes(32), 0)
    round_ = Round(
        round=3,
        epoch=1,
        plan=blob,
        model=blob,
        control=blob if algorithm.controls else None,
        algorithm=algorithm.wire(),
        weighting=algorithm.weighting,
        codecs=codecs,
        members=1,
        target=1,
        quorum=1,
        deadline=60.0,
        valid=60.0,
        part_size=1024,
        seed=11,
    )
    pending = update_of(store, Announced(round_, b"b" * 32, algorithm), outcome, None)
    # What the device goes on from belongs to the result, too.
    c_i = b"" if pending.c_i_next is None else pending.c_i_next[:].astype("<i8").tobytes()
    left = b"" if outcome.residual is None else outcome.residual.astype("<f4").tobytes()
    return bytes(pending.body) + c_i + left


def _cases() -> Iterator[tuple[str, tuple[FedAvg, str, bool, Codec, bool]]]:
    for named, algorithm in _ALGORITHMS.items():
        for holding, (scheme, int8_shift) in _HOLDINGS.items():
            if int8_shift and not algorithm.controls:
                continue
            for codec, feedback in _UPLINKS:
                feeds = feedback and getattr(algorithm, "delta_c", "none") != "derived"
                name = f"{named}; {holding}; {codec}{' with feedback' if feeds else ''}"
                yield name, (algorithm, scheme, int8_shift, codec, feeds)


CASES = dict(_cases())


def digests() -> dict[str, str]:
    """The SHA-256 of each case's update."""
    return {name: hashlib.sha256(update(*case)).hexdigest() for name, case in CASES.items()}


if __name__ == "__main__":
    print(json.dumps(digests(), indent=1))
