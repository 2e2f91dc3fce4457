"""What a round of int8 training takes beside its session: bytes a weight that NumPy allocates."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from support.scripted import ScriptedInt8
from support.update_bytes import numbers

from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.coded import decode_parts
from kellet.sdk.controls import Controls
from kellet.sdk.plan.manifest import layout
from kellet.sdk.plan.schemes import Int8Layout
from kellet.sdk.protocol.vectors import Shapes, encode_vector
from kellet.sdk.trainer import Data, begin, train_from
from kellet.sdk.uplink import Uplink

SIDE = 1024
TENSORS = layout([("w", (4 * SIDE, SIDE), "train", "mean"), ("b", (SIDE,), "train", "mean")])
SHAPES = Shapes.of(TENSORS)
N = SHAPES.n_train
MB = 1e6
COMMON: dict[str, Any] = {"local_lr": 2.0**-10, "batch_size": 0, "local_steps": 2}


class StillControl:
    """c_i of a newcomer, read in parts as from a disk."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, part: slice) -> Any:
        start, stop, _ = part.indices(N)
        return np.zeros(stop - start, np.int64)


@pytest.mark.parametrize(
    ("algorithm", "held"),
    [
        # y_0 and the update's bytes; then what both codings hold for a moment
        (FedAvg(**COMMON), 3.6),
        (FedProx(mu=0.5, **COMMON), 3.6),
        # and the shift
        (Scaffold(control_damping=0.125, **COMMON), 4.6),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_no_float32_copy_of_the_weights_is_made(algorithm: FedAvg, held: float) -> None:
    gradient = numbers("g", 1 << 16, 2.0**-17)
    session = ScriptedInt8(TENSORS, "w8.row/1", lambda _step, _at: gradient)
    session.weight_grads[:] = np.resize(gradient, session.layout.n_weights)
    session.step = lambda x, y: 1.0  # type: ignore[method-assign]  # the gradient stays
    x = encode_vector(
        "q8", np.resize(numbers("x", 1 << 16, 2.0**-16), SHAPES.n_update), SHAPES.update
    )
    c = encode_vector("q8", np.resize(numbers("c", 1 << 16, 2.0**-20), N), SHAPES.train)
    received = decode_parts("q8", x, SHAPES.update, SHAPES.n_update)
    controls = None
    if algorithm.controls:
        controls = Controls(decode_parts("q8", c, SHAPES.train, N), StillControl())
    who: dict[str, Any] = {"seed": 0, "device": "a", "round_": 1}
    # What loading decodes at once is one tensor of many; here it is nearly all.
    session.load(received, seed=0)
    session.load = lambda x, *, seed: None  # type: ignore[method-assign]
    tracemalloc.start()
    model = begin(session, algorithm, received, shapes=SHAPES, controls=controls, **who)
    outcome = train_from(
        model,
        algorithm,
        Data(np.zeros((1, 1), np.float32), np.zeros(1, np.int64)),
        shapes=SHAPES,
        controls=controls,
        uplink=Uplink(delta_y="q8", delta_c="derived" if algorithm.controls else "none"),
        **who,
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcome.steps == 2
    assert peak / N < held


def test_the_state_of_y_is_about_one_byte_a_weight() -> None:
    manifest: Any = type("Manifest", (), {"tensors": TENSORS})
    for scheme, most in (("w8.row/1", 1.01), ("w8.block64/1", 1.07)):
        assert Int8Layout.of(manifest, scheme).state_bytes / N < most
