"""Several threads give the bits of one."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kellet import kernels
from kellet.kernels import _threads
from kellet.kernels.rows import parts_of

pytestmark = pytest.mark.usefixtures("each_backend")

N = _threads.SHORTEST + 1077  # neither blocks nor rows come out even
COUNTS = (1, 2, 3, 5)


@pytest.fixture(autouse=True)
def one_thread_again() -> Iterator[None]:
    yield
    kernels.set_threads(1)


def normal(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(N).astype(np.float32)


def each_count(compute: Callable[[], Any]) -> list[bytes]:
    results = []
    for count in COUNTS:
        kernels.set_threads(count)
        assert kernels.threads() == count
        results.append(compute())
    return results


def test_local_steps() -> None:
    start, g, d = normal(0), normal(1), normal(2)

    def compute() -> bytes:
        y, m = start.copy(), np.zeros(N, np.float32)
        kernels.scaffold_step_shift(y, g, d, 0.1)
        kernels.prox_step(y, g, start, 0.1, 0.5, weight_decay=0.01, clip=3.0)
        kernels.scaffold_momentum_step(y, m, g, d, 0.1, beta=0.9)
        return y.tobytes() + m.tobytes()

    assert len(set(each_count(compute))) == 1


@pytest.mark.parametrize("n", [N, _threads.SHORTEST, _threads.SHORTEST + 7, N + 12])
def test_sums_of_squares(n: int) -> None:
    v = np.resize(normal(3), n) * 1e3
    assert len(set(each_count(lambda: kernels.sum_of_squares(v)))) == 1


def test_int8_steps() -> None:
    layout = np.array([1, 7, 3, 100_000, 5000, 64, 1, N - 7 - 300_000 - 320_000], np.int64)
    start, d, g = (
        kernels.quantise(normal(4), layout),
        kernels.quantise(normal(5), layout),
        normal(6),
    )
    g[[3, 500_000]] = np.inf

    def compute() -> bytes:
        y, z = start.copy(), normal(8)
        assert kernels.scaffold_step_int8(y, g, d, 0.1, seed=9, step=4) == 2
        kernels.sgd_step_int8(y, z, 0.1, seed=9, step=5, weight_decay=0.01, clip=3.0)
        kernels.scaffold_step_shift_rows(z, g, d, 0.1)
        return y.values.tobytes() + y.scales.tobytes() + z.tobytes()

    assert len(set(each_count(compute))) == 1


def test_sums() -> None:
    v = normal(7)

    def compute() -> bytes:
        lo, hi, total = np.zeros(N, np.uint64), np.zeros(N, np.int64), np.zeros(N)
        kernels.accumulate(lo, hi, v, 12345)
        kernels.add_scaled(lo, hi, kernels.to_grid(v), -7)
        kernels.add_weighted(total, v, 0.3)
        return lo.tobytes() + hi.tobytes() + total.tobytes()

    assert len(set(each_count(compute))) == 1


def test_a_bound_step_follows_the_number_of_threads() -> None:
    y, g = np.zeros(N, np.float32), np.ones(N, np.float32)
    step = kernels.bind("sgd_step", y, g)
    for count in (2, 1, 3):
        kernels.set_threads(count)
        step(1.0)
    assert (y == -3).all()


def test_short_vectors_start_no_thread() -> None:
    kernels.set_threads(4)
    _threads._forget_pool()
    kernels.sgd_step(np.zeros(N // 2, np.float32), np.ones(N // 2, np.float32), 1.0)
    assert _threads._pool is None


def test_a_forked_process_computes_too() -> None:
    kernels.set_threads(2)
    y, g = np.zeros(N, np.float32), np.ones(N, np.float32)
    kernels.sgd_step(y, g, 1.0)
    if not (child := os.fork()):
        kernels.sgd_step(y, g, 1.0)
        os._exit(0 if (y == -2).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("bad", [0, -1, 10_000])
def test_wrong_numbers_of_threads_are_refused(bad: int) -> None:
    with pytest.raises(ValueError, match="n must"):
        kernels.set_threads(bad)
    assert kernels.threads() == 1


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_parts_of_a_layout_cover_it_in_order(count: int) -> None:
    layout = np.array([5, 3, 1, 40, 20, 2], np.int64)
    lengths = [3] * 5 + [40] + [2] * 20
    parts = parts_of(layout, count)
    assert len(parts) <= count
    row = start = 0
    seen: list[int] = []
    for part in parts:
        assert (part.rows.start, part.elements.start) == (row, start)
        own = np.repeat(part.layout[1::2], part.layout[::2]).tolist()
        assert part.rows.stop - row == len(own)
        assert part.elements.stop - start == sum(own)
        row, start = part.rows.stop, part.elements.stop
        seen += own
    assert seen == lengths
