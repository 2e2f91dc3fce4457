"""Int8 rows, top-k and their sums: values by hand, what is exact, what is refused."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_inputs import random_bits, random_layout

from kellet import kernels
from kellet.kernels import Int8Rows

pytestmark = pytest.mark.usefixtures("each_backend")

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def normal(n: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


# Layouts


def test_layouts_by_hand() -> None:
    assert kernels.row_layout([(8, 3, 5), (8,), (2, 4)]).tolist() == [8, 15, 1, 8, 2, 4]
    assert kernels.block_layout(150).tolist() == [2, 64, 1, 22]
    assert kernels.block_layout(128).tolist() == [2, 64]
    assert kernels.block_layout(22).tolist() == [1, 22]
    assert kernels.block_layout(0).tolist() == []
    assert kernels.block_layout(7, 3).tolist() == [2, 3, 1, 1]
    with pytest.raises(ValueError, match="no elements"):
        kernels.row_layout([(3, 0)])


# To int8 and back


def test_rows_by_hand() -> None:
    v = f32(127, -63.5, 0.5, 1.5, -127) / 8
    rows = kernels.quantise(
        np.concatenate([v, [0], v[::-1] * 2]).astype(np.float32), i64(1, 5, 1, 1, 1, 5)
    )
    assert rows.values.tolist() == [127, -64, 0, 2, -127, 0, -127, 2, 0, -64, 127]  # ties to even
    assert rows.scales.tolist() == [0.125, 2.0**-40, 0.25]
    assert kernels.dequantise(rows).tolist()[:5] == [127 / 8, -8, 0, 0.25, -127 / 8]


def test_headroom_leaves_room() -> None:
    rows = kernels.quantise(f32(127, 1), i64(1, 2), headroom=1.27)
    assert rows.scales[0] == pytest.approx(1.27)
    assert rows.values.tolist() == [100, 1]


@settings(deadline=None)
@given(n=st.integers(0, 300), seed=st.integers(0, 2**32))
def test_rounding_is_to_the_nearest(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    v = random_bits("f4", n, rng, finite=True)
    layout = random_layout(n, rng)
    rows = kernels.quantise(v, layout)
    unit = np.repeat(rows.scales, np.repeat(layout[1::2], layout[::2])).astype(np.float64)
    assert (np.abs(rows.values * unit - v) <= unit * 0.50001).all()
    assert n == 0 or (np.abs(rows.values.astype(int)) <= 127).all()
    # What was decoded is coded to the same again, where a row's largest value is 127.
    again = kernels.quantise(kernels.dequantise(rows), layout)
    full = rows.scales > 2.0**-40
    assert np.allclose(again.scales[full], rows.scales[full], rtol=2.0**-22, atol=0)
    assert again.values.tolist() == rows.values.tolist()


def test_stochastic_rounding_is_unbiased_and_repeats() -> None:
    n = 1 << 16
    v = np.full(n, 10.3, np.float32)
    v[::64] = 127
    rows = kernels.quantise(v, kernels.block_layout(n), seed=3, step=1)
    drawn = rows.values[np.arange(n) % 64 != 0]
    assert set(drawn.tolist()) == {10, 11}
    assert abs(drawn.mean() - 10.3) < 4 * np.sqrt(0.21 / n)
    assert (rows.values[::64] == 127).all()
    same = kernels.quantise(v, kernels.block_layout(n), seed=3, step=1)
    other = kernels.quantise(v, kernels.block_layout(n), seed=3, step=2)
    assert same.values.tobytes() == rows.values.tobytes() != other.values.tobytes()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("seed", [None, 1])
def test_rows_without_a_scale_are_refused(bad: float, seed: int | None) -> None:
    with pytest.raises(ValueError, match="row 1 "):
        kernels.quantise(f32(1, 2, 3, bad, 5, bad), i64(3, 2), seed=seed)


def test_the_smallest_values_become_zeros() -> None:
    rows = kernels.quantise(f32(1e-45, -1e-45, 1e-30), i64(1, 3))
    assert rows.values.tolist() == [0, 0, 0]
    assert rows.scales == 2.0**-40


def test_wrong_arguments_of_the_codec_are_refused() -> None:
    v = normal(6)
    for headroom in (0.5, 128, float("nan")):
        with pytest.raises(ValueError, match="headroom"):
            kernels.quantise(v, i64(2, 3), headroom=headroom)
    for layout in (i64(2, 4), i64(-1, -6), i64(6), i64(1 << 40, 1 << 40)):
        with pytest.raises(ValueError, match="layout"):
            kernels.quantise(v, layout)
    with pytest.raises(TypeError):
        kernels.quantise(v.astype(np.float64), i64(2, 3))  # type: ignore[arg-type]
    rows = kernels.quantise(v, i64(2, 3))
    out = np.full(5, 7, np.float32)
    with pytest.raises(ValueError, match="one length"):
        kernels.dequantise(rows, out)
    assert (out == 7).all()


# The largest elements


def test_top_k_by_hand() -> None:
    v = f32(3, -5, 0, 5, -3, 1)
    index, value = kernels.top_k(v, 3)
    assert (index.tolist(), value.tolist()) == ([0, 1, 3], [3, -5, 5])  # 3 before its equal -3
    assert kernels.top_k(v, 1)[0].tolist() == [1]
    assert kernels.top_k(v, 6)[1].tolist() == v.tolist()
    zeros = f32(0, -0.0, 0, 0)
    assert kernels.top_k(zeros, 2)[0].tolist() == [0, 1]


@settings(deadline=None)
@given(
    values=st.lists(FINITE | st.sampled_from([0.0, 1.0, -1.0]), min_size=1, max_size=60),
    data=st.data(),
)
def test_top_k_is_a_stable_sort_by_magnitude(values: list[float], data: Any) -> None:
    k = data.draw(st.integers(1, len(values)))
    v = f32(*values)
    index, value = kernels.top_k(v, k)
    by_size = sorted(range(v.size), key=lambda i: (-abs(float(v[i])), i))
    assert index.tolist() == sorted(by_size[:k])
    assert value.tobytes() == v[index].tobytes()


def test_top_k_of_many() -> None:
    v = normal(100_000)
    index, _ = kernels.top_k(v, 1000)
    assert index.tolist() == sorted(np.argsort(-np.abs(v), kind="stable")[:1000].tolist())


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), k=st.integers(1, 50))
def test_nothing_is_lost_with_feedback(seed: int, k: int) -> None:
    residual, sent, given_ = np.zeros(50, np.float32), np.zeros(50), np.zeros(50)
    rng = np.random.default_rng(seed)
    for _ in range(4):
        v = rng.integers(-1000, 1000, 50).astype(np.float32)
        given_ += v
        index, value = kernels.top_k_feedback(v, residual, k)
        sent[index] += value
        assert (residual[index] == 0).all()
        assert (sent + residual == given_).all()
        assert np.abs(residual).max() <= np.abs(value).min()


def test_what_top_k_refuses() -> None:
    v, residual = f32(1, 2, 3), f32(5, 5, 5)
    for k in (0, 4, -1):
        with pytest.raises(ValueError, match="k must"):
            kernels.top_k_feedback(v, residual, k)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"v\[1\]"):
            kernels.top_k_feedback(f32(1, bad, 3), residual, 1)
    with pytest.raises(ValueError, match=r"v\[0\]"):
        kernels.top_k_feedback(f32(3e38, 0, 0), f32(3e38, 0, 0), 1)
    with pytest.raises(ValueError, match="overlap"):
        kernels.top_k_feedback(residual, residual, 1)
    assert residual.tolist() == [5, 5, 5]


# Sums


def whole(lo: Any, hi: Any) -> list[int]:
    return [(int(h) << 64) + int(low) for low, h in zip(lo, hi, strict=True)]


@settings(deadline=None)
@given(n=st.integers(0, 100), seed=st.integers(0, 2**32), weight=st.integers(1 - 2**31, 2**31 - 1))
def test_accumulate_is_the_two_steps_in_one(n: int, seed: int, weight: int) -> None:
    rng = np.random.default_rng(seed)
    v = random_bits("f4", n, rng)
    v[~(np.abs(v) < 2.0**14)] = np.nextafter(np.float32(2.0**14), np.float32(0))
    lo, hi = random_bits("u8", n, rng), random_bits("i8", n, rng)
    lo_2, hi_2 = lo.copy(), hi.copy()
    kernels.accumulate(lo, hi, v, weight)
    kernels.add_scaled(lo_2, hi_2, kernels.to_grid(v), weight)
    assert lo.tobytes() == lo_2.tobytes()
    assert hi.tobytes() == hi_2.tobytes()


@settings(deadline=None)
@given(
    st.lists(st.floats(-16383.5, 16383.5, width=32), max_size=20),
    st.integers(-(2**31) + 1, 2**31 - 1),
)
def test_accumulate_against_fractions(values: list[float], weight: int) -> None:
    lo, hi = np.zeros(len(values), np.uint64), np.zeros(len(values), np.int64)
    kernels.accumulate(lo, hi, f32(*values), weight)
    assert whole(lo, hi) == [round(Fraction(v) * 2**48) * weight for v in values]


def test_ties_of_the_cut_go_to_even() -> None:
    # Halves of a grid step, and values next to the places where the sum is cut in two.
    steps = [0.5, 1.5, 2.5, -0.5, -1.5, 2.0**30, 2.0**31, 3 * 2.0**30, -(2.0**31), -3 * 2.0**30]
    steps += [2.0**30 - 64, 2.0**30 + 128, 2.0**22 + 0.5, 2.0**22 + 1.5, -(2.0**22) - 0.5]
    lo, hi = np.zeros(len(steps), np.uint64), np.zeros(len(steps), np.int64)
    kernels.accumulate(lo, hi, (np.array(steps) * 2.0**-48).astype(np.float32), 1)
    assert whole(lo, hi) == [round(Fraction(step)) for step in steps]


def test_rows_accumulate_as_what_they_decode_to() -> None:
    rng = np.random.default_rng(1)
    layout = random_layout(500, rng)
    rows = kernels.quantise(normal(500, 2) * 100, layout)
    sums = [(np.zeros(500, np.uint64), np.zeros(500, np.int64)) for _ in range(2)]
    for weight in (7, -3, 2**31 - 1):
        kernels.accumulate(*sums[0], rows, weight)
        kernels.accumulate(*sums[1], kernels.dequantise(rows), weight)
    assert whole(*sums[0]) == whole(*sums[1])


def test_accumulate_refuses_before_it_writes() -> None:
    lo, hi = np.full(4, 7, np.uint64), np.full(4, -7, np.int64)
    for bad in (16384, -16384, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"v\[2\]"):
            kernels.accumulate(lo, hi, f32(1, 2, bad, bad), 1)
    large = Int8Rows(np.array([1, 127, 1, 1], np.int8), f32(100, 200), i64(2, 2))
    with pytest.raises(ValueError, match=r"v\[1\]"):
        kernels.accumulate(lo, hi, Int8Rows(large.values, f32(200, 200), large.layout), 1)
    for weight in (2**31, -(2**31)):
        with pytest.raises(ValueError, match="weight"):
            kernels.accumulate(lo, hi, f32(1, 2, 3, 4), weight)
    with pytest.raises(TypeError):
        kernels.accumulate(lo, hi, np.zeros(4), 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="overlap"):
        kernels.accumulate(lo, lo.view(np.int64), f32(1, 2, 3, 4), 1)
    assert lo.tolist() == [7] * 4
    assert hi.tolist() == [-7] * 4
    kernels.accumulate(lo, hi, large, 1)  # 127*100 is on the grid
    assert whole(lo, hi)[1] == -7 * 2**64 + 7 + 12700 * 2**48


def test_weighted_sums_by_hand() -> None:
    total = np.array([1.0, -1.0])
    kernels.add_weighted(total, f32(2, 4), 0.5)
    assert total.tolist() == [2, 1]
    kernels.add_weighted(total, np.array([2.0, 4.0]), -0.5)
    assert total.tolist() == [1, -1]
    kernels.add_weighted(total, Int8Rows(np.array([10, -4], np.int8), f32(0.5), i64(1, 2)), 2)
    assert total.tolist() == [11, -5]
    for weight in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="weight"):
            kernels.add_weighted(total, f32(2, 4), weight)
    with pytest.raises(ValueError, match="one length"):
        kernels.add_weighted(total, f32(2), 1)
    assert total.tolist() == [11, -5]


def test_modular_sums_by_hand() -> None:
    total, part = np.array([2**64 - 1, 5], np.uint64), np.array([3, 7], np.uint64)
    kernels.add_modular(total, part)
    assert total.tolist() == [2, 12]
    kernels.subtract_modular(total, part)
    kernels.subtract_modular(total, part)
    assert total.tolist() == [2**64 - 4, 2**64 - 2]
    with pytest.raises(TypeError):
        kernels.add_modular(total, part.view(np.int64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="overlap"):
        kernels.add_modular(total, total)
    assert total.tolist() == [2**64 - 4, 2**64 - 2]
