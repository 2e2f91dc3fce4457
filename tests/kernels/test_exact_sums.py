"""The exact sums against Python's integers and fractions."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kellet import kernels
from kellet.kernels.hash import mix, seed32

ONE = 1 << 48
LIMIT = 2.0**14
INSIDE = float(np.nextafter(LIMIT, 0))
INT64 = st.integers(-(2**63), 2**63 - 1)

pytestmark = pytest.mark.usefixtures("each_backend")


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def limbs(*values: int) -> tuple[Any, Any]:
    """Return 128-bit integers as (lo, hi)."""
    lo = np.array([value & (2**64 - 1) for value in values], np.uint64)
    return lo, np.array([value >> 64 for value in values], np.int64)


def whole(lo: Any, hi: Any) -> list[int]:
    return [(int(h) << 64) + int(low) for low, h in zip(lo, hi, strict=True)]


# To the grid and back


def test_grid_values_by_hand() -> None:
    values = [1.0, -1.0, 0.0, -0.0, 0.5, 1.5, -2.75]
    wanted = [ONE, -ONE, 0, 0, ONE // 2, 3 * ONE // 2, -11 * ONE // 4]
    assert kernels.to_grid(f32(*values)).tolist() == wanted
    assert kernels.to_grid(np.array(values)).tolist() == wanted


def test_ties_go_to_even() -> None:
    half = 2.0**-49
    steps = [1, 2, 3, 4, 5, -1, -3, -5, 0.5, -0.5, 1.5, 2.5]
    wanted = [0, 1, 2, 2, 2, 0, -2, -2, 0, 0, 1, 1]
    assert kernels.to_grid(np.array(steps) * half).tolist() == wanted
    assert kernels.to_grid((np.array(steps) * half).astype(np.float32)).tolist() == wanted


def test_ties_next_to_the_last_fractions() -> None:
    # Above 2**51 grid steps a float64 has halves, from 2**52 none.
    for base in (2**51, 2**52 - 2):
        values = np.array([base + 0.5, base + 1.5, -base - 0.5, -base - 1.5]) * 2.0**-48
        wanted = [base, base + 2, -base, -base - 2]
        assert kernels.to_grid(values).tolist() == wanted


@settings(deadline=None)
@given(st.lists(st.floats(-INSIDE, INSIDE), max_size=20))
def test_grid_is_the_nearest_integer(values: list[float]) -> None:
    # Python rounds a Fraction half to even.
    assert kernels.to_grid(np.array(values)).tolist() == [round(Fraction(v) * ONE) for v in values]


def test_grid_bounds() -> None:
    top = kernels.to_grid(np.array([INSIDE, -INSIDE]))
    assert top.tolist() == [round(Fraction(INSIDE) * ONE), -round(Fraction(INSIDE) * ONE)]
    inside32 = np.nextafter(np.float32(LIMIT), np.float32(0))
    assert kernels.to_grid(f32(inside32)).tolist() == [round(Fraction(float(inside32)) * ONE)]


@pytest.mark.parametrize("bad", [LIMIT, -LIMIT, 1e30, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_the_grid_cannot_hold_is_refused(bad: float, dtype: Any) -> None:
    values = np.ones(40, dtype)
    values[[23, 31]] = bad
    out = np.full(40, 7, np.int64)
    with pytest.raises(ValueError, match=r"v\[23\]"):
        kernels.to_grid(values, out)
    assert (out == 7).all()
    with pytest.raises(ValueError, match=r"v\[23\]"):
        kernels.to_grid(values)


def test_out_is_the_result() -> None:
    out = np.empty(2, np.int64)
    assert kernels.to_grid(f32(1, 2), out) is out
    assert out.tolist() == [ONE, 2 * ONE]


@settings(deadline=None)
@given(st.lists(INT64, max_size=20))
def test_from_grid_rounds_once(values: list[int]) -> None:
    wanted = [float(Fraction(value, ONE)) for value in values]
    assert kernels.from_grid(i64(*values)).tolist() == wanted


def test_a_float32_survives_the_grid_down_to_its_step() -> None:
    values = f32(1 / 3, -2 / 3, 1000.1, 2.0**-25 * 1.5)
    assert kernels.from_grid(kernels.to_grid(values)).astype(np.float32).tolist() == values.tolist()


# 128-bit sums


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-(2**127), 2**127 - 1), INT64, st.integers(1 - 2**31, 2**31 - 1)),
        max_size=20,
    )
)
def test_add_scaled_is_128_bit_arithmetic(rows: list[tuple[int, int, int]]) -> None:
    for weight in {row[2] for row in rows} | {0}:
        lo, hi = limbs(*(row[0] for row in rows))
        kernels.add_scaled(lo, hi, i64(*(row[1] for row in rows)), weight)
        sums = [row[0] + row[1] * weight for row in rows]
        assert whole(lo, hi) == [(total + 2**127) % 2**128 - 2**127 for total in sums]


def test_carries_by_hand() -> None:
    lo, hi = limbs(2**64 - 1, -1, 0, 2**64)
    kernels.add_scaled(lo, hi, i64(1, 1, -1, -1), 1)
    assert whole(lo, hi) == [2**64, 0, -1, 2**64 - 1]
    kernels.add_scaled(lo, hi, i64(1, 1, -1, -1), -1)
    assert whole(lo, hi) == [2**64 - 1, -1, 0, 2**64]


def test_any_order_gives_the_same_sum() -> None:
    rng = np.random.default_rng(1)
    rows = [
        (kernels.to_grid(rng.normal(0, 100, 50)), int(rng.integers(1, 2**31))) for _ in range(40)
    ]
    wanted = [sum(int(q[j]) * weight for q, weight in rows) for j in range(50)]
    for _ in range(3):
        rng.shuffle(rows)
        lo, hi = limbs(*[0] * 50)
        for q, weight in rows:
            kernels.add_scaled(lo, hi, q, weight)
        assert whole(lo, hi) == wanted


def test_taking_out_what_was_put_in_leaves_zero() -> None:
    rng = np.random.default_rng(2)
    rows = [kernels.to_grid(rng.normal(0, 1000, 30)) for _ in range(20)]
    lo, hi = limbs(*[0] * 30)
    for q in rows:
        kernels.add_scaled(lo, hi, q, 12345)
    for q in reversed(rows):
        kernels.add_scaled(lo, hi, q, -12345)
    assert whole(lo, hi) == [0] * 30


def test_limbs_round_once_at_every_size() -> None:
    values = [0, -(2**127), 2**127 - 1]
    for bits in range(127):
        values += [2**bits + nearby for nearby in (-2, -1, 0, 1, 2)]
    for bits in range(54, 126):  # ties, and their neighbours on both sides
        odd, even = (2**53 - 1) << (bits - 53), (2**53 - 2) << (bits - 53)
        tie = 1 << (bits - 54)
        values += [start + tie + nearby for start in (odd, even) for nearby in (-1, 0, 1)]
    values += [-value for value in values[3:]]
    assert kernels.limbs_to_float64(*limbs(*values)).tolist() == [float(v) for v in values]


@settings(deadline=None)
@given(st.lists(st.integers(-(2**127), 2**127 - 1), max_size=20))
def test_limbs_to_float64(values: list[int]) -> None:
    assert kernels.limbs_to_float64(*limbs(*values)).tolist() == [float(v) for v in values]


# SCAFFOLD's controls


@pytest.mark.parametrize(
    ("delta_y", "c", "wanted"), [(-1.2, 2, 4), (-0.8, 2, 2), (-0.19, 0, 0.95), (0.72, 0, -3.6)]
)
def test_delta_c_by_hand(delta_y: float, c: float, wanted: float) -> None:
    # Two steps at .1: c_i_new - c_i = -c - delta_y/.2
    q = kernels.derived_delta_c(f32(c), f32(delta_y), 0.2)
    assert kernels.from_grid(q)[0] == pytest.approx(wanted, abs=1e-6)


floats32 = st.floats(-1000, 1000, width=32)


@settings(deadline=None)
@given(
    st.lists(st.tuples(floats32, floats32), max_size=20),
    st.floats(0.1, 1e6),
    st.floats(0, 1, exclude_min=True),
)
def test_delta_c_is_the_float64_line_on_the_grid(
    rows: list[tuple[float, float]], rate_sum: float, damping: float
) -> None:
    c_a, delta_y = (f32(*(row[k] for row in rows)) for k in (0, 1))
    wanted = [round(Fraction(-c - d / rate_sum) * ONE) for c, d in rows]
    assert kernels.derived_delta_c(c_a, delta_y, rate_sum).tolist() == wanted
    assert kernels.derived_delta_c(c_a, delta_y, rate_sum, 1.0).tolist() == wanted
    damped = [round(Fraction(damping * (-c - d / rate_sum)) * ONE) for c, d in rows]
    assert kernels.derived_delta_c(c_a, delta_y, rate_sum, damping).tolist() == damped


def test_damping_by_hand() -> None:
    # A tenth, as planned for int8, of -2 + 1.2/.2.
    q = kernels.derived_delta_c(f32(2), f32(-1.2), 0.2, damping=0.1)
    assert kernels.from_grid(q)[0] == pytest.approx(0.4, abs=1e-6)


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.0000001, float("nan"), float("inf")])
def test_damping_lies_above_0_and_not_above_1(bad: float) -> None:
    with pytest.raises(ValueError, match="damping"):
        kernels.derived_delta_c(f32(1), f32(1), 1.0, bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_delta_c_needs_a_positive_sum_of_rates(bad: float) -> None:
    with pytest.raises(ValueError, match="rate_sum"):
        kernels.derived_delta_c(f32(1), f32(1), bad)


def test_delta_c_outside_the_grid_is_refused_by_index() -> None:
    with pytest.raises(ValueError, match=r"delta_c\[1\].*delta_y 2"):
        kernels.derived_delta_c(f32(0, 0, 0), f32(1, 2, 2), 2 / LIMIT)
    with pytest.raises(ValueError, match=r"delta_c\[2\]"):
        kernels.derived_delta_c(f32(0, 0, np.nan), f32(1, 2, 2), 1)


def test_control_shift_by_hand() -> None:
    c, q_ci = f32(2, 1, -0.5), kernels.to_grid(f32(5, -3, 0.25))
    assert kernels.control_shift(c, q_ci).tolist() == [-3, 4, -0.75]
    out = np.empty(3, np.float32)
    assert kernels.control_shift(c, q_ci, out) is out
    assert out.tolist() == [-3, 4, -0.75]


@settings(deadline=None)
@given(floats32, st.integers(-(2**62), 2**62))
def test_control_shift_is_taken_in_float64(c: float, q: int) -> None:
    wanted = np.float32(c - float(q) * 2.0**-48)
    assert kernels.control_shift(f32(c), i64(q))[0] == wanted


# Norms


def test_norms_by_hand() -> None:
    assert kernels.sum_of_squares(f32(3, 4)) == 25.0
    assert kernels.norm(f32(3, 4)) == 5.0
    assert kernels.norm(f32()) == 0.0
    assert kernels.distance(f32(4, 0, 1), f32(1, 4, 1)) == 5.0
    assert kernels.distance(np.array([4.0, 0.0]), f32(1, 4)) == 5.0


def test_squares_of_float32_do_not_overflow() -> None:
    assert kernels.norm(f32(3e38, 3e38)) == pytest.approx(float(np.float32(3e38)) * 2**0.5)
    assert kernels.norm(f32(1e-45)) == float(np.float32(1e-45))


def test_norm_of_what_is_not_finite() -> None:
    assert kernels.norm(f32(1, np.inf)) == np.inf
    assert np.isnan(kernels.norm(f32(1, np.nan)))


@pytest.mark.parametrize("n", [7, 8, 1023, 1024, 1025, 2048, 5000])
def test_sum_of_squares_keeps_the_written_order(n: int) -> None:
    v = np.random.default_rng(n).standard_normal(n) * 10.0 ** np.arange(n).astype(float).clip(0, 9)
    squares = [value * value for value in v.tolist()]
    rows = n // 8 * 8
    total = 0.0
    for start in range(0, rows, 1024):
        lane = [0.0] * 8
        for i in range(start, min(start + 1024, rows)):
            lane[i % 8] += squares[i]
        a, b, c, d = (lane[j] + lane[j + 4] for j in range(4))
        total += (a + c) + (b + d)
    for square in squares[rows:]:
        total += square
    assert kernels.sum_of_squares(v) == total


# The digest


def test_hash_by_hand() -> None:
    # 1 ^ 1>>16 = 1; * 7FEB352D; ^ >>15; * 846CA68B; ^ >>16, all modulo 2**32.
    h = 0x7FEB352D
    h ^= h >> 15
    h = h * 0x846CA68B % 2**32
    assert mix(1) == h ^ h >> 16
    assert mix(0) == 0
    assert len({mix(i) for i in range(10_000)}) == 10_000
    assert seed32(5) != seed32(5 << 32) != seed32(5, 1)


def factor(seed: int, index: int) -> int:
    return mix((index * 0x9E3779B1 ^ seed32(seed)) & 0xFFFFFFFF) | 1


@settings(deadline=None)
@given(st.lists(INT64, max_size=40), st.integers(0, 2**64 - 1))
def test_digest_is_the_sum_by_factors(values: list[int], seed: int) -> None:
    wanted = sum(factor(seed, j) * value for j, value in enumerate(values)) % 2**64
    assert kernels.linear_digest(i64(*values), seed) == wanted


def test_digest_is_linear() -> None:
    rng = np.random.default_rng(3)
    parts = [rng.integers(-(2**61), 2**61, 1000) for _ in range(5)]
    total = parts[0] + parts[1] + parts[2] + parts[3] + parts[4]  # wraps, as the digest does
    for seed in (0, 1, 2**64 - 1):
        digests = [kernels.linear_digest(part, seed) for part in parts]
        assert kernels.linear_digest(total, seed) == sum(digests) % 2**64


def test_digest_in_parts() -> None:
    q = np.arange(-500, 500) * 12345
    whole = kernels.linear_digest(q, 5)
    parts = [kernels.linear_digest(q[i : i + 300], 5, first=i) for i in range(0, 1000, 300)]
    assert whole == sum(parts) % 2**64


@pytest.mark.parametrize("pattern", [(1, -1), (1, 1), (1, -2, 1), (1, -1, -1, 1)])
def test_digest_sees_what_is_balanced(pattern: tuple[int, ...]) -> None:
    """A gradient of two classes is (g, -g): with signs for factors, every other seed is blind."""
    for g in (1, 2**20, -(2**47)):
        q = i64(*(g * p for p in pattern))
        assert all(kernels.linear_digest(q, seed) for seed in range(500))


def test_digest_sees_one_grid_step() -> None:
    q = np.arange(1000)
    before = kernels.linear_digest(q, 9)
    q[17] += 1
    assert (kernels.linear_digest(q, 9) - before) % 2**64 == factor(9, 17)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_digest_seed_has_64_bits(seed: int) -> None:
    with pytest.raises(ValueError, match="seed"):
        kernels.linear_digest(i64(1), seed)


# What is refused


def test_wrong_arrays_are_refused_before_anything_is_written() -> None:
    lo, hi, q = np.zeros(3, np.uint64), np.zeros(3, np.int64), np.ones(3, np.int64)
    refused: list[tuple[type, Any]] = [
        (TypeError, lambda: kernels.add_scaled(hi, hi.copy(), q, 1)),
        (TypeError, lambda: kernels.add_scaled(lo, lo.copy(), q, 1)),
        (TypeError, lambda: kernels.add_scaled(lo, hi, q.astype(float), 1)),
        (ValueError, lambda: kernels.add_scaled(lo, hi, q[:2], 1)),
        (ValueError, lambda: kernels.add_scaled(lo, hi, hi, 1)),
        (ValueError, lambda: kernels.add_scaled(lo, lo.view(np.int64), q, 1)),
        (ValueError, lambda: kernels.add_scaled(lo, hi, q, 2**31)),
        (ValueError, lambda: kernels.add_scaled(lo, hi, q, -(2**31))),
        (TypeError, lambda: kernels.add_scaled(lo, hi, q, 1.5)),
        (TypeError, lambda: kernels.to_grid(q)),
        (TypeError, lambda: kernels.to_grid(np.ones(3, np.float16))),
        (TypeError, lambda: kernels.to_grid(f32(1, 2, 3), lo)),
        (ValueError, lambda: kernels.to_grid(f32(1, 2), hi)),
        (ValueError, lambda: kernels.to_grid(hi.view(np.float64), hi)),
        (TypeError, lambda: kernels.from_grid(lo)),
        (ValueError, lambda: kernels.limbs_to_float64(lo, hi[:2])),
        (TypeError, lambda: kernels.derived_delta_c(np.ones(3), f32(1, 2, 3), 1)),
        (ValueError, lambda: kernels.derived_delta_c(f32(1), f32(1, 2), 1)),
        (TypeError, lambda: kernels.control_shift(np.ones(3), q)),
        (ValueError, lambda: kernels.control_shift(f32(1), q)),
        (TypeError, lambda: kernels.norm(q)),
        (ValueError, lambda: kernels.distance(f32(1), f32(1, 2))),
        (TypeError, lambda: kernels.linear_digest(lo, 1)),
    ]
    for error, attempt in refused:
        with pytest.raises(error):
            attempt()
    assert lo.tolist() == hi.tolist() == [0, 0, 0]
    assert q.tolist() == [1, 1, 1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint64, np.uint8])
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 1000])
def test_aligned(n: int, dtype: Any) -> None:
    array = kernels.aligned(n, dtype)
    assert array.shape == (n,)
    assert array.dtype == dtype
    assert n == 0 or array.ctypes.data % 64 == 0  # without elements there is no address
    assert not array.any()
    assert array.flags.writeable
    assert array.flags.c_contiguous


def test_aligned_refuses_a_negative_length() -> None:
    with pytest.raises(ValueError, match="n must lie in"):
        kernels.aligned(-1)
