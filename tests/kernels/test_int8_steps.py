"""The steps on int8 rows: worked by hand, their scales, their rounding, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_inputs import random_layout

from kellet import kernels
from kellet.kernels import Int8Rows, reference_rows
from kellet.kernels.hash import INDEX_FACTOR, mix, seed32, uniform

pytestmark = pytest.mark.usefixtures("each_backend")

LEAST = 2.0**-40


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def rows(values: Any, scales: Any, layout: Any = None) -> Int8Rows:
    """Return int8 rows, by default one of all values."""
    q = np.array(values, np.int8)
    pairs = [1, q.size] if layout is None else layout
    return Int8Rows(q, np.array(scales, np.float32, ndmin=1), np.array(pairs, np.int64))


def step(y: Int8Rows, g: Any, lr: float = 0.5, *, seed: int = 1, count: int = 0) -> int:
    return kernels.sgd_step_int8(y, g, lr, seed=seed, step=count)


# By hand: lr 1/2 and scale 1/2 make one unit of gradient one unit of weight.


def test_sgd_takes_whole_units_exactly() -> None:
    for seed in range(20):
        y = rows([100, 50, -25, 0], 0.5)
        assert step(y, f32(1, -2, 3, 4), seed=seed) == 0
        assert y.values.tolist() == [99, 52, -28, -4]
        assert y.scales == 0.5


def test_the_shift_is_added_to_the_gradient() -> None:
    y, d = rows([100, 50, -25, 0], 0.5), rows([3, 0, -1, 10], 2.0)
    assert kernels.scaffold_step_int8(y, f32(1, -2, 3, 4), d, 0.5, seed=7, step=3) == 0
    assert y.values.tolist() == [100 - 7, 52, -26, -24]


def test_prox_pulls_to_the_anchor() -> None:
    # y - x is 0, 4, -10 and 2; half of it joins the gradient.
    y, x = rows([100, 50, -20, 4], 0.5), rows([50, 21, 0, 0], 1.0)
    assert kernels.prox_step_int8(y, f32(1, 0, 3, 0), x, 0.5, 0.5, seed=7, step=3) == 0
    assert y.values.tolist() == [99, 48, -18, 3]


def test_each_row_has_its_own_scale() -> None:
    y = rows([100, 0, 100, 0], [0.5, 1.0], [2, 2])
    assert step(y, f32(2, 2, 2, 2)) == 0
    assert y.values.tolist() == [98, -2, 99, -1]


def test_mu_zero_is_sgd_to_the_bit() -> None:
    rng = np.random.default_rng(3)
    layout = kernels.block_layout(1000)
    start = kernels.quantise(rng.standard_normal(1000).astype(np.float32), layout)
    g = rng.standard_normal(1000).astype(np.float32)
    plain, pulled, anchor = start.copy(), start.copy(), start.copy()
    kernels.sgd_step_int8(plain, g, 0.01, seed=5, step=2)
    kernels.prox_step_int8(pulled, g, anchor, 0.01, 1e-60, seed=5, step=2)
    assert plain.values.tobytes() == pulled.values.tobytes()
    assert plain.scales.tobytes() == pulled.scales.tobytes()


# Rounding


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_rounding_is_by_the_hash_of_seed_step_and_index(seed: int, count: int) -> None:
    lengths = [64, 150, 3, 128]
    index = 0
    g = np.arange(sum(lengths), dtype=np.float32) % 64 / 64
    for length in lengths:
        g[index] = 0  # where each row's 100 stands
        index += length
    y = rows(np.zeros(g.size), [0.5] * 4, [1, 64, 1, 150, 1, 3, 1, 128])
    starts = np.cumsum([0, *lengths[:-1]])
    y.values[starts] = 100
    step(y, -g, seed=seed, count=count)
    for start, length in zip(starts.tolist(), lengths, strict=True):
        for j in range(1, length):
            drawn = uniform(start + j, j, length, seed32(seed, count))
            assert y.values[start + j] == (g[start + j] + drawn / 2**15 >= 1)


def test_uniforms_by_hand() -> None:
    seed = seed32(3, 1)
    h = mix(7 * INDEX_FACTOR % 2**32 ^ seed)
    assert uniform(7, 7, 64, seed) == h >> 17
    assert uniform(39, 39, 64, seed) == h & 0x7FFF
    # Without 64 in the row, or after the last 64, each has its own.
    other = mix(39 * INDEX_FACTOR % 2**32 ^ seed)
    assert uniform(39, 39, 63, seed) == uniform(39, 70, 100, seed) == other >> 17


def drawn_by(seed: int, count: int, n: int = 1 << 18) -> Any:
    """Return the uniforms [n/64, 64] of rows of 64."""
    return reference_rows.uniforms((n // 64, 64), 0, np.uint32(seed32(seed, count)))


def deviation(table: Any) -> float:
    """Return by how many deviations a chi-square of equally likely cells is off."""
    expected = table.sum() / table.size
    freedom = table.size - 1
    return float(abs(((table - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def joint(a: Any, b: Any, shift: int) -> float:
    """The same for four bits of one against four bits of the other, from bit ``shift``."""
    cells = (a.ravel() >> shift & 15) * 16 + (b.ravel() >> shift & 15)
    return deviation(np.bincount(cells, minlength=256))


@pytest.mark.parametrize("seed", range(3))
def test_both_uniforms_of_a_hash_are_uniform_and_independent(seed: int) -> None:
    u, later = drawn_by(seed, 0), drawn_by(seed, 1)
    first, second = u[:, :32], u[:, 32:]
    for half in (first, second):
        assert deviation(np.bincount(half.ravel() >> 5, minlength=1024)) < 4.5
        assert deviation(np.bincount(half.ravel() & 1023, minlength=1024)) < 4.5
    for shift in (0, 4, 8, 11):
        assert joint(first, second, shift) < 4.5  # of one hash
        assert joint(first, later[:, :32], shift) < 4.5
        assert joint(second, later[:, 32:], shift) < 4.5
        assert joint(first, later[:, 32:], shift) < 4.5
        for lag in (1, 2, 4, 8, 16):
            assert joint(first[:, lag:], first[:, :-lag], shift) < 4.5
            assert joint(second[:, lag:], second[:, :-lag], shift) < 4.5
            assert joint(first[:, lag:], second[:, :-lag], shift) < 4.5
        for lag in (1, 2, 16, 256):
            assert joint(second[lag:], second[:-lag], shift) < 4.5


def test_rounding_is_unbiased() -> None:
    n = 1 << 16
    for v in (60.3, -60.3, 99.99, 57.5, -126.0001):
        y = rows(np.full(n, int(v)), [1.0] * (n // 64), [n // 64, 64])
        step(y, np.full(n, int(v) - v, np.float32), lr=1.0, seed=11)
        part = abs(v - int(v))
        deviation = np.sqrt(part * (1 - part) / n)
        assert abs(y.values.mean() - v) < 4 * deviation + 2.0**-15
        assert set(np.unique(y.values)) <= {int(np.floor(v)), int(np.ceil(v))}


def test_steps_are_rounded_independently() -> None:
    n = 1 << 16
    drawn = []
    for seed, count in ((1, 0), (1, 1), (2, 0)):
        y = rows(np.full(n, 60), [1.0], [1, n])
        step(y, np.full(n, -0.5, np.float32), lr=1.0, seed=seed, count=count)
        drawn.append(y.values - 60.5)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.mean(drawn[a] * drawn[b])) < 4 * 0.25 / np.sqrt(n)
    for lag in (1, 2, 31, 32, 33, 64):
        assert abs(np.mean(drawn[0][lag:] * drawn[0][:-lag])) < 4 * 0.25 / np.sqrt(n)


def test_small_updates_arrive_in_the_mean() -> None:
    n = 4096
    y = rows(np.full(n, 100), [1.0], [1, n])
    g = np.full(n, 0.01, np.float32)  # nearest rounding would never move
    for count in range(300):
        step(y, g, lr=1.0, seed=5, count=count)
    assert y.scales == 1
    assert y.values.mean() == pytest.approx(97, abs=4 * np.sqrt(3 / n))


@settings(deadline=None)
@given(n=st.integers(1, 400), seed=st.integers(0, 2**32), lr=st.floats(0, 1e6, width=32))
def test_weights_without_a_gradient_do_not_move(n: int, seed: int, lr: float) -> None:
    rng = np.random.default_rng(seed)
    layout = random_layout(n, rng)
    v = (rng.standard_normal(n) * 10.0 ** rng.uniform(-5, 5)).astype(np.float32)
    y = kernels.quantise(v, layout)
    before = y.copy()
    assert step(y, np.zeros(n, np.float32), lr, seed=seed) == 0
    assert y.values.tobytes() == before.values.tobytes()
    assert y.scales.tobytes() == before.scales.tobytes()


def test_rounding_is_unbiased_whether_or_not_the_scale_stays() -> None:
    # The first weight's row comes near 127 or 57, so that the draw decides how it is looked at.
    n = 1 << 15
    for v in (125.7, 126.6, 127.4, 57.3, 56.6):
        values = np.zeros((n // 64, 64), np.int8)
        values[:, 0] = 100
        y = rows(values.ravel(), np.ones(n // 64), [n // 64, 64])
        g = np.zeros((n // 64, 64), np.float32)
        g[:, 0] = 100 - v
        total = []
        for count in range(40):
            own = y.copy()
            assert step(own, g.ravel(), lr=1.0, seed=6, count=count) == 0
            assert len(set(own.scales.tolist())) == 1
            total.append(kernels.dequantise(own)[::64])
        assert abs(np.mean(total) - v) < 4 * 0.55 / np.sqrt(n / 64 * 40)


def test_a_large_move_within_the_range_is_taken() -> None:
    y = rows([100, -127, 60], 0.5)
    assert step(y, f32(180, -227, 0)) == 0
    assert (y.values.tolist(), y.scales.tolist()) == ([-80, 100, 60], [0.5])


# Scales


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("top", "keeps"), [(57, True), (127, True), (56, False), (128, False)])
def test_a_scale_stays_while_the_row_is_in_range(top: int, keeps: bool, sign: int) -> None:
    y = rows([sign * 100, 0, sign * 10], 0.5)
    step(y, f32(sign * (100 - top), 0, 0))
    if keeps:
        assert y.scales == 0.5
        assert y.values.tolist() == [sign * top, 0, sign * 10]
    else:
        assert y.scales[0] == pytest.approx(0.5 * top * 1.08 / 127)
        assert abs(int(y.values[0])) in (117, 118)
        assert abs(int(y.values[2])) - 10 * 127 / 1.08 / top == pytest.approx(0, abs=1)


def test_a_row_of_zeros_stays_one_and_can_leave() -> None:
    y = rows([0, 0], 0.25)
    assert step(y, f32(0, 0)) == 0
    assert (y.values.tolist(), y.scales.tolist()) == ([0, 0], [0.25])
    assert step(y, f32(1, -0.5)) == 0
    assert y.values[0] in (-117, -118)
    assert y.values[1] in (58, 59)
    assert kernels.dequantise(y)[0] == pytest.approx(-0.5, rel=0.01)


def test_a_row_that_comes_to_zeros_keeps_its_scale() -> None:
    y = rows([100, -4], 0.5)
    assert step(y, f32(100, -4)) == 0
    assert (y.values.tolist(), y.scales.tolist()) == ([0, 0], [0.5])


def test_one_element_rows() -> None:
    y = rows([100, -100, 1], [1.0, 2.0, 3.0], [3, 1])
    assert step(y, f32(1, -4, 0), lr=1.0) == 0
    assert y.values[:2].tolist() == [99, -98]
    assert abs(int(y.values[2])) in (117, 118)  # 1 was below the range
    assert kernels.dequantise(y)[2] == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_a_row_that_cannot_be_held_is_left_and_counted(bad: float) -> None:
    for position in range(3):
        y = rows([100, 50, -25] * 3, [0.5, 0.5, 0.5], [3, 3])
        g = f32(*[1.0] * 9)
        g[3 + position] = bad
        assert step(y, g, lr=1e3 if bad == 3e38 else 0.5) == 1
        assert y.values[3:6].tolist() == [100, 50, -25]
        assert y.scales[1] == 0.5
        assert y.values[:3].tolist() != [100, 50, -25]
        assert y.values[6:].tolist() != [100, 50, -25]


def test_rates_that_explode_leave_finite_weights() -> None:
    rng = np.random.default_rng(0)
    y = kernels.quantise(rng.standard_normal(640).astype(np.float32), kernels.block_layout(640))
    left = 0
    for count in range(60):
        g = kernels.dequantise(y) * np.float32(50)
        left = step(y, g, lr=1.0, count=count)
        assert np.isfinite(kernels.dequantise(y)).all()
        assert (y.scales <= 2.0**80).all()
    assert left == 10


def test_rows_that_vanish_stay_above_the_least_scale() -> None:
    y = rows([100, 50], LEAST)
    assert step(y, f32(99 * LEAST, 0), lr=1.0) == 0
    assert y.scales == np.float32(LEAST)
    assert y.values.tolist() == [1, 50]
    denormal = f32(1e-45, -1e-45)
    assert step(rows([100, 50], LEAST), denormal) == 0


@settings(deadline=None)
@given(n=st.integers(1, 300), seed=st.integers(0, 2**32))
def test_weights_stay_within_a_unit_of_the_exact_step(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = random_layout(n, rng)
    v, g, d = (rng.standard_normal(n).astype(np.float32) for _ in range(3))
    y, shift = kernels.quantise(v, layout), kernels.quantise(d, layout)
    start, q_d = kernels.dequantise(y), kernels.dequantise(shift)
    lr = float(10.0 ** rng.uniform(-4, 1))
    assert kernels.scaffold_step_int8(y, g, shift, lr, seed=seed, step=1) == 0
    exact = start - lr * (g.astype(np.float64) + q_d)
    unit = np.repeat(y.scales, np.repeat(layout[1::2], layout[::2]))
    assert (np.abs(kernels.dequantise(y) - exact) <= unit * 1.001).all()


# Weight decay and clipping


@pytest.mark.parametrize(
    ("name", "others", "moved"),
    [
        ("sgd_step_int8", (), (3 + 25, -6 + 10)),
        # y - x is 10 and 0; half of it joins.
        ("prox_step_int8", (([80, 40], 0.5),), (3 + 25 + 5, -6 + 10)),
        ("scaffold_step_int8", (([4, -1], 2.0),), (3 + 25 + 8, -6 + 10 - 2)),
    ],
)
def test_decay_and_clipping_come_before_the_correction(
    name: Any, others: tuple[Any, ...], moved: tuple[int, int]
) -> None:
    # y is 50 and 20, of which decay makes 25 and 10; g of norm 7.5*sqrt(5) is halved by clipping.
    y, g = rows([100, 40], 0.5), f32(6, -12)
    clip = kernels.norm(g) / 2
    step = kernels.bind(name, y, g, *(rows(*other) for other in others), seed=1,
                        weight_decay=0.5, clip=clip)  # fmt: skip
    assert step(*((0.5, 0.5) if "prox" in name else (0.5,)), 0) == 0
    assert y.scales == 0.5
    assert y.values.tolist() == [100 - moved[0], 40 - moved[1]]
    assert g.tolist() == [6, -12]


@pytest.mark.parametrize("name", ["sgd_step_int8", "prox_step_int8", "scaffold_step_int8"])
def test_without_decay_and_clipping_the_plain_step_runs(name: Any) -> None:
    rng = np.random.default_rng(8)
    layout = kernels.block_layout(500)
    v, o, g = (rng.standard_normal(500).astype(np.float32) for _ in range(3))
    others = () if name == "sgd_step_int8" else (kernels.quantise(o, layout),)
    rates = (0.01, 0.5) if "prox" in name else (0.01,)
    outcomes = []
    for options in ({}, {"weight_decay": 1e-60}, {"clip": kernels.norm(g)}):
        y = kernels.quantise(v, layout)
        kernels.bind(name, y, g, *others, seed=4, **options)(*rates, 2)
        outcomes.append(y.values.tobytes() + y.scales.tobytes())
    assert len(set(outcomes)) == 1


# Float32 weights, and the shift in rows


def test_the_shift_in_rows_by_hand() -> None:
    y = f32(8, 1, 0, -4)
    kernels.scaffold_step_shift_rows(
        y, f32(1, 2, 3, 4), rows([2, -1, 4, 0], [0.5, 2.0], [2, 2]), 0.5
    )
    assert y.tolist() == [8 - 1, 1 - 0.75, -5.5, -6]
    y = f32(8, 8)  # a gradient of norm 5 is halved; a quarter of y joins it
    d = rows([-2, 3], 0.5)
    kernels.scaffold_step_shift_rows(y, f32(3, 4), d, 0.5, weight_decay=0.25, clip=2.5)
    assert y.tolist() == [8 - 0.5 * (3.5 - 1), 8 - 0.5 * (4 + 1.5)]


@settings(deadline=None)
@given(n=st.integers(0, 300), seed=st.integers(0, 2**32))
def test_the_shift_in_rows_is_what_it_decodes_to(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, g, d = (rng.standard_normal(n).astype(np.float32) for _ in range(3))
    coded = kernels.quantise(d, random_layout(n, rng))
    for options in ({}, {"weight_decay": 0.1, "clip": 0.5}):
        own = y.copy()
        kernels.scaffold_step_shift(own, g, kernels.dequantise(coded), 0.1, **options)
        kernels.bind("scaffold_step_shift_rows", y, g, coded, **options)(0.1)
        assert y.tobytes() == own.tobytes()


def test_what_the_step_with_a_shift_in_rows_refuses() -> None:
    y, g, d = f32(1, 2, 3, 4), f32(1, 2, 3, 4), rows([1, 2, 3, 4], 0.5)
    with pytest.raises(TypeError, match="d must be Int8Rows"):
        kernels.scaffold_step_shift_rows(y, g, g, 0.1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="y must be a NumPy array"):
        kernels.scaffold_step_shift_rows(d, g, d, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one length"):
        kernels.scaffold_step_shift_rows(y, g, rows([1, 2], 0.5), 0.1)
    with pytest.raises(ValueError, match="overlap"):
        kernels.scaffold_step_shift_rows(y, y, d, 0.1)
    with pytest.raises(TypeError, match="takes no seed"):
        kernels.bind("scaffold_step_shift_rows", y, g, d, seed=1)
    with pytest.raises(TypeError, match="no beta"):
        kernels.bind("scaffold_step_shift_rows", y, g, d, beta=0.5)
    for lr in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="lr"):
            kernels.scaffold_step_shift_rows(y, g, d, lr)
    d.scales[0] = np.nan
    with pytest.raises(ValueError, match=r"d\.scales\[0\]"):
        kernels.scaffold_step_shift_rows(y, g, d, 0.1)
    assert y.tolist() == [1, 2, 3, 4]


# What is refused


def usual() -> tuple[Int8Rows, Any, Int8Rows]:
    return rows([100, 50, -25, 0], 0.5), f32(1, 2, 3, 4), rows([1, 2, 3, 4], 0.5)


@pytest.mark.parametrize("name", ["sgd_step_int8", "prox_step_int8", "scaffold_step_int8"])
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda g: g.astype(np.float64), TypeError),
        (lambda g: g.tolist(), TypeError),
        (lambda g: g[:-1], ValueError),
        (lambda g: np.repeat(g, 2)[::2], ValueError),
        (lambda g: g.reshape(2, 2), ValueError),
    ],
)
def test_wrong_gradients_are_refused(name: Any, spoil: Callable[[Any], Any], error: type) -> None:
    y, g, other = usual()
    others = () if name == "sgd_step_int8" else (other,)
    with pytest.raises(error):
        kernels.bind(name, y, spoil(g), *others, seed=1)
    assert y.values.tolist() == [100, 50, -25, 0]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e-20, 1e30])
def test_wrong_scales_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"scales\[0\]"):
        rows([1, 2], scale)
    y, g, other = usual()
    other.scales[0] = scale  # after it was checked
    with pytest.raises(ValueError, match=r"x\.scales\[0\]"):
        kernels.prox_step_int8(y, g, other, 0.1, 0.1, seed=1, step=0)
    assert y.values.tolist() == [100, 50, -25, 0]


@pytest.mark.parametrize(
    "layout", [[1, 3], [2, 2], [1, 4, 1, 0], [1, 4, 0, 5], [1, 4, 1], [-1, -4], []]
)
def test_layouts_that_do_not_cover_the_vector_are_refused(layout: list[int]) -> None:
    with pytest.raises(ValueError, match="layout"):
        rows([1, 2, 3, 4], 0.5, layout)


def test_overlap_read_only_and_other_layouts_are_refused() -> None:
    y, g, other = usual()
    with pytest.raises(ValueError, match="overlap"):
        kernels.prox_step_int8(y, g, y, 0.1, 0.1, seed=1, step=0)
    with pytest.raises(ValueError, match="y's layout"):
        kernels.prox_step_int8(
            y, g, rows([1, 2, 3, 4], [1.0, 1.0], [2, 2]), 0.1, 0.1, seed=1, step=0
        )
    with pytest.raises(TypeError, match="x must be Int8Rows"):
        kernels.prox_step_int8(y, g, g, 0.1, 0.1, seed=1, step=0)  # type: ignore[arg-type]
    y.values.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.sgd_step_int8(y, g, 0.1, seed=1, step=0)
    assert other.values.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("lr", "mu", "seed", "count"),
    [
        (float("nan"), 0.1, 1, 0),
        (-0.1, 0.1, 1, 0),
        (0.1, float("inf"), 1, 0),
        (0.1, 0.1, -1, 0),
        (0.1, 0.1, 2**64, 0),
        (0.1, 0.1, 1, -1),
        (0.1, 0.1, 1, 2**32),
    ],
)
def test_wrong_numbers_are_refused(lr: float, mu: float, seed: int, count: int) -> None:
    y, g, x = usual()
    with pytest.raises(ValueError):
        kernels.prox_step_int8(y, g, x, lr, mu, seed=seed, step=count)
    assert y.values.tolist() == [100, 50, -25, 0]


def test_bind_says_what_a_step_takes() -> None:
    y, g, x = usual()
    with pytest.raises(TypeError, match="needs a seed"):
        kernels.bind("sgd_step_int8", y, g)
    with pytest.raises(TypeError, match="y, g, x"):
        kernels.bind("prox_step_int8", y, g, seed=1)
    with pytest.raises(TypeError, match="no beta: a momentum buffer"):
        kernels.bind("prox_step_int8", y, g, x, seed=1, beta=0.9)
    for bad in (float("nan"), float("inf"), -0.1):
        with pytest.raises(ValueError, match="weight_decay"):
            kernels.bind("prox_step_int8", y, g, x, seed=1, weight_decay=bad)
        with pytest.raises(ValueError, match="clip"):
            kernels.bind("prox_step_int8", y, g, x, seed=1, clip=bad)
    with pytest.raises(ValueError, match="clip must be positive"):
        kernels.bind("sgd_step_int8", y, g, seed=1, clip=0)
