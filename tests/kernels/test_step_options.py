"""Weight decay, clipping and momentum on the float32 steps."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_inputs import random_bits, same_bits

from kellet import kernels

pytestmark = pytest.mark.usefixtures("each_backend")

PLAIN: dict[Any, int] = {
    "sgd_step": 2,
    "prox_step": 3,
    "prox_step_implicit": 3,
    "scaffold_step": 4,
    "scaffold_step_shift": 3,
}
MOMENTUM: dict[Any, int] = {
    "sgd_momentum_step": 3,
    "prox_momentum_step": 4,
    "scaffold_momentum_step": 4,
}


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def rates(name: str) -> tuple[float, ...]:
    return (0.5, 2.0) if "prox" in name else (0.5,)


# Weight decay: y = 8, g = 3 and decay 1/4 make the gradient 5.


@pytest.mark.parametrize(
    ("name", "others", "wanted"),
    [
        ("sgd_step", (), 8 - 0.5 * 5),
        ("prox_step", (6,), 8 - 0.5 * (5 + 2 * 2)),
        ("prox_step_implicit", (6,), (8 - 0.5 * 5 + 6) / 2),
        ("scaffold_step", (2, 4), 8 - 0.5 * (5 - 2 + 4)),
        ("scaffold_step_shift", (-1,), 8 - 0.5 * (5 - 1)),
    ],
)
def test_weight_decay_is_part_of_the_gradient(
    name: Any, others: tuple[float, ...], wanted: float
) -> None:
    y = f32(8)
    kernels.bind(name, y, f32(3), *map(f32, others), weight_decay=0.25)(*rates(name))
    assert y == np.float32(wanted)


@pytest.mark.parametrize("name", PLAIN)
@settings(deadline=None)
@given(n=st.integers(0, 40), seed=st.integers(0, 2**32))
def test_without_decay_and_clipping_the_plain_step_runs(name: Any, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [random_bits("f4", n, rng) for _ in range(PLAIN[name])]
    y = arrays[0].copy()
    kernels.bind(name, *arrays, weight_decay=1e-60)(*rates(name))
    kernels.bind(name, y, *arrays[1:])(*rates(name))
    assert same_bits(arrays[0], y)


# Clipping: a gradient (3, 4) has norm 5.


def test_clip_norm_by_hand() -> None:
    g = f32(3, 0, 4)
    assert kernels.clip_norm(g, 2.5) == 5
    assert g.tolist() == [1.5, 0, 2]
    assert kernels.clip_norm(g, 2.5) == 2.5
    assert g.tolist() == [1.5, 0, 2]
    assert kernels.clip_norm(f32(), 1) == 0


def test_a_gradient_in_parts_is_clipped_as_one() -> None:
    parts = f32(2, 0), f32(), f32(4, -4)
    assert kernels.clip_norm(parts, 3) == 6
    assert [part.tolist() for part in parts] == [[1, 0], [], [2, -2]]
    with pytest.raises(TypeError):
        kernels.clip_norm((parts[0], np.ones(2)), 0.1)
    assert parts[0].tolist() == [1, 0]


def test_clipping_comes_before_the_correction() -> None:
    y, g = f32(0, 0), f32(3, 4)
    kernels.scaffold_step_shift(y, g, f32(100, -100), 1.0, clip=2.5)
    assert y.tolist() == [-101.5, 98]
    assert g.tolist() == [3, 4]
    y = f32(8, 0)
    kernels.sgd_step(y, g, 1.0, clip=2.5, weight_decay=0.5)
    assert y.tolist() == [8 - (1.5 + 4), -2]


@pytest.mark.parametrize("name", PLAIN)
def test_a_gradient_within_its_limit_is_not_touched(name: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(100).astype(np.float32) for _ in range(PLAIN[name])]
    y = arrays[0].copy()
    limit = kernels.norm(arrays[1])
    kernels.bind(name, y, *arrays[1:], clip=limit)(*rates(name))
    kernels.bind(name, *arrays)(*rates(name))
    assert y.tobytes() == arrays[0].tobytes()


def test_a_bound_step_clips_each_gradient_anew() -> None:
    y, g = f32(0, 0), f32(3, 4)
    step = kernels.bind("sgd_step", y, g, clip=2.5)
    step(1.0)
    g[:] = 0, 10
    step(1.0)
    assert y.tolist() == [-1.5, -4.5]


def test_a_gradient_that_is_not_finite_shows() -> None:
    for bad in (float("inf"), float("nan")):
        g = f32(bad, 1)
        assert not kernels.clip_norm(g, 1.0) <= 1e300
        assert np.isnan(g[0])


# Momentum


def test_momentum_by_hand() -> None:
    # m: 2, then 2*.5 + 2 = 3.
    y, m = f32(10), f32(0)
    step = kernels.bind("sgd_momentum_step", y, m, f32(2), beta=0.5)
    step(0.5)
    assert (y, m) == (9, 2)
    step(0.5)
    assert (y, m) == (7.5, 3)

    y, m = f32(10), f32(4)
    kernels.scaffold_momentum_step(y, m, f32(2), f32(-1), 0.5, beta=0.5)
    assert (y, m) == (8.5, 3)

    y, m = f32(10), f32(4)
    kernels.prox_momentum_step(y, m, f32(2), f32(7), 0.5, 2, beta=0.5)
    assert (y, m) == (5, 10)

    y, m = f32(8, 0), f32(0, 0)
    kernels.sgd_momentum_step(y, m, f32(3, 4), 1.0, beta=0.5, clip=2.5, weight_decay=0.5)
    assert (y.tolist(), m.tolist()) == ([2.5, -2], [5.5, 2])


def test_mu_zero_leaves_the_anchor_out() -> None:
    y, m = f32(10), f32(4)
    kernels.prox_momentum_step(y, m, f32(2), f32(np.inf), 0.5, 0.0, beta=0.5)
    assert (y, m) == (8, 4)


def test_rate_sum_by_hand() -> None:
    # s: 1, 1.5, 1.75; A: .25 + .75*... each rate times s.
    total, s = 0.0, 0.0
    for lr in (0.25, 0.5, 1.0):
        total, s = kernels.advance_rate_sum(total, s, lr, beta=0.5)
    assert (total, s) == (0.25 + 0.75 + 1.75, 1.75)
    total, s = kernels.advance_rate_sum(0.0, 0.0, 0.1)
    assert (total, s) == (float(np.float32(0.1)), 1)


@settings(deadline=None)
@given(
    beta=st.floats(0, 0.984375, width=32),
    lrs=st.lists(st.floats(2.0**-10, 0.25, width=32), min_size=1, max_size=8),
)
def test_the_rate_sum_is_how_far_a_constant_gradient_carries(beta: float, lrs: list[float]) -> None:
    y, m = f32(0), f32(0)
    step = kernels.bind("scaffold_momentum_step", y, m, f32(3), f32(-1), beta=beta)
    total, s = 0.0, 0.0
    for lr in lrs:
        step(lr)
        total, s = kernels.advance_rate_sum(total, s, lr, beta)
    assert float(y[0]) == pytest.approx(-2 * total, rel=1e-5)


# What is refused


@pytest.mark.parametrize("name", [*PLAIN, *MOMENTUM])
def test_wrong_options_are_refused(name: Any) -> None:
    arrays = [f32(1, 2) for _ in range((PLAIN | MOMENTUM)[name])]
    fit: dict[str, Any] = {"beta": 0.5} if name in MOMENTUM else {}
    for bad in (float("nan"), float("inf"), -0.1, 1e39):
        with pytest.raises(ValueError, match="weight_decay"):
            kernels.bind(name, *arrays, weight_decay=bad, **fit)
        with pytest.raises(ValueError, match="clip"):
            kernels.bind(name, *arrays, clip=bad, **fit)
    with pytest.raises(ValueError, match="clip must be positive"):
        kernels.bind(name, *arrays, clip=0, **fit)
    with pytest.raises(TypeError, match="seed"):
        kernels.bind(name, *arrays, seed=1, **fit)
    with pytest.raises(TypeError, match="beta"):
        kernels.bind(name, *arrays, **({} if fit else {"beta": 0.5}))
    assert all(array.tolist() == [1, 2] for array in arrays)


@pytest.mark.parametrize("beta", [1.0, 1 - 1e-9, -0.1, float("nan")])
def test_wrong_momenta_are_refused(beta: float) -> None:
    y, m, g = f32(1), f32(1), f32(1)
    with pytest.raises(ValueError, match="beta"):
        kernels.sgd_momentum_step(y, m, g, 0.1, beta=beta)
    with pytest.raises(ValueError, match="beta"):
        kernels.advance_rate_sum(0.0, 0.0, 0.1, beta)
    assert (y, m) == (1, 1)


def test_momentum_writes_two_arrays_which_overlap_nothing() -> None:
    y, m, g = f32(1), f32(1), f32(1)
    for arrays in ((y, y, g), (y, m, m), (y, m, y)):
        with pytest.raises(ValueError, match="overlap"):
            kernels.sgd_momentum_step(*arrays, 0.1, beta=0.5)
    m.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.sgd_momentum_step(y, m, g, 0.1, beta=0.5)
    assert (y, m) == (1, 1)


def test_clip_norm_refuses() -> None:
    g = f32(3, 4)
    for limit in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="clip"):
            kernels.clip_norm(g, limit)
    with pytest.raises(TypeError):
        kernels.clip_norm(g.astype(np.float64), 1)  # type: ignore[arg-type]
    g.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.clip_norm(g, 1)
    assert g.tolist() == [3, 4]
