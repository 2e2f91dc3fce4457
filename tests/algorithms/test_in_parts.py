"""What the server computes in parts, so that it takes no memory: the bits of the whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.heap import CHUNK
from kellet.server import algorithms
from kellet.server.ledger import Ledger
from kellet.server.optimizers import PlainMean, ServerOptimizer
from kellet.server.sums import ExactSum

N_TRAIN, N_UPDATE, N_PARAMS = CHUNK + 77, 2 * CHUNK + 5, 2 * CHUNK + 9
WEIGHT = 7
OPTIMIZERS = [
    PlainMean(server_lr=0.3),
    algorithms.FedAvgM(server_lr=0.3),
    algorithms.FedAdagrad(),
    algorithms.FedAdam(),
    algorithms.FedYogi(),
]


def floats(n: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def total(n: int, seed: int = 0) -> ExactSum:
    made = ExactSum(n)
    for each in range(3):
        made.add(floats(n, seed + each), 5 + each)
    return made


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_a_model_moves_in_parts_as_it_would_whole(optimizer: ServerOptimizer) -> None:
    x, added = floats(N_PARAMS, 9), total(N_UPDATE)
    moments = np.abs(floats(optimizer.moments * N_TRAIN, 8)).astype(np.float64)
    kept = (optimizer.name, moments.tobytes())
    moved = algorithms.apply_mean(x, added, WEIGHT, optimizer, N_TRAIN, kept)

    moments = moments.reshape(optimizer.moments, N_TRAIN)
    mean = kernels.limbs_to_float64(added.lo, added.hi) / (WEIGHT * 2.0**48)
    mean[:N_TRAIN] = optimizer.step(mean[:N_TRAIN], moments)
    expected = x.copy()
    expected[:N_UPDATE] = (x[:N_UPDATE].astype(np.float64) + mean).astype(np.float32)
    assert moved.model.tobytes() == expected.tobytes()
    assert moved.kept == ((optimizer.name, moments.tobytes()) if optimizer.moments else None)
    assert moved.step_norm == kernels.norm(mean[:N_TRAIN])


def test_the_announced_control_has_the_bits_of_the_mean() -> None:
    control = total(N_TRAIN)
    mean = kernels.limbs_to_float64(control.lo, control.hi) / (3 * 2.0**48)
    c = algorithms.announced_control(control, 3)
    assert c.tobytes() == mean.astype(np.float32).tobytes()
    assert not algorithms.announced_control(control, 0).any()


def test_float32_is_added_as_its_grid_is() -> None:
    v = floats(1000, 1)
    v[:4] = 2.0**-49, -(2.0**-49), 3 * 2.0**-49, -16383.5
    one, other = ExactSum(1000), ExactSum(1000)
    one.add(v, 11)
    other.add_grid(kernels.to_grid(v), 11)
    assert one.dump() == other.dump()


def test_limbs_read_in_parts_are_the_dump() -> None:
    made = total(CHUNK + 3)
    raw = made.lo.tobytes() + made.hi.tobytes()
    assert made.dump() == raw
    middle = len(raw) // 2
    assert made.limbs[middle - 3 : middle + 13] == raw[middle - 3 : middle + 13]
    assert b"".join(made.limbs[at : at + 1000] for at in range(0, len(raw), 1000)) == raw
    assert ExactSum.load(made.limbs).dump() == raw
    assert ExactSum.load(raw).integers() == made.integers()


def test_a_checkpoint_is_read_back_with_its_bits(tmp_path: Path) -> None:
    first, second = total(CHUNK + 3), total(CHUNK + 3, seed=20)
    vectors = floats(70_001, 5).tobytes()
    ledger = Ledger(tmp_path / "ledger.db")
    ledger.found(bytes(32), bytes(32), first.limbs)
    with ledger.control() as limbs:
        assert ExactSum.load(limbs).dump() == first.dump()
    ledger.open_round(1, b"announced")
    state = ledger.fleet()
    assert state is not None
    assert state[2] == 1  # the last round, before it closes
    ledger.close_round(
        1,
        closed=True,
        model=b"m" * 32,
        control=second.limbs,
        summary={},
        moments=("avgm", vectors),
    )
    ledger.close()
    again = Ledger(tmp_path / "ledger.db")
    assert again.fleet() == (bytes(32), 1, 1, 1, b"m" * 32)
    assert again.moments() == ("avgm", vectors)
    with again.control() as limbs:
        assert ExactSum.load(limbs).dump() == second.dump()
    again.new_epoch(2, ExactSum(CHUNK + 3).limbs, {})
    with again.control() as limbs:
        assert limbs[:] == bytes(16 * (CHUNK + 3))
    again.close()
