"""A personal training makes no vector: v is where the fleet's model was."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
from support.rounds import round_of
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.holdout import Judge
from kellet.sdk.outgoing import Announced
from kellet.sdk.personal import Ditto
from kellet.sdk.personal.turn import take_turn
from kellet.sdk.store import Store
from kellet.sdk.trainer import Data

PLAN = softmax_regression(400_000, 3)


def announced(round_: int) -> Announced:
    algorithm = FedAvg(local_lr=0.01, local_steps=2, batch_size=1)
    message = round_of(PLAN, algorithm, round=round_, personal=Ditto(0.5, steps=2).wire())
    return Announced(message, bytes([round_]) * 32, algorithm)


def test_no_vector_is_made(tmp_path: Path) -> None:
    store = Store("a", tmp_path / "device.db")
    session, x = PLAN.session(), PLAN.initial()
    data = Data(*PLAN.check_data(np.ones((2, 400_000), np.float32), np.array([0, 1])))
    for round_ in (1, 2, 3):  # from x, and twice from the disk
        tracemalloc.start()
        turn = take_turn(
            announced(round_),
            session,
            x,
            data,
            plan=PLAN,
            shelf=store.personal,
            judge=Judge(PLAN, None),
            kept=None,
            device="a",
        )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert turn is not None
        assert turn.ran is not None
        # Two batches of 1.6 MB, one after the other, and work in parts: a vector is 4.8 MB.
        assert peak < data.x.nbytes + 1_000_000 < 4 * PLAN.n_update
    store.close()
