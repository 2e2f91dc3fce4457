"""The local steps: numbers worked by hand, and what is refused."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernel_inputs import random_bits, same_bits

from kellet import kernels

pytestmark = pytest.mark.usefixtures("each_backend")


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


def path(step: Callable[..., None], y: Any, *scalars: float) -> list[float]:
    """Return y[0] before and after each of two steps."""
    values = [float(y[0])]
    for _ in range(2):
        step(*scalars)
        values.append(float(y[0]))
    return values


@pytest.mark.parametrize(("g", "c_i", "wanted"), [(9, 5, [10, 9.4, 8.8]), (3, 1, [10, 9.6, 9.2])])
def test_scaffold_walks_against_the_corrected_gradient(
    g: float, c_i: float, wanted: list[float]
) -> None:
    y = f32(10)
    step = kernels.bind("scaffold_step", y, f32(g), f32(c_i), f32(2))
    assert path(step, y, 0.1) == pytest.approx(wanted, abs=2e-6)

    y = f32(10)
    shifted = kernels.bind("scaffold_step_shift", y, f32(g), f32(2 - c_i))
    assert path(shifted, y, 0.1) == pytest.approx(wanted, abs=2e-6)


def test_prox_walks_on_a_leash() -> None:
    y, x, g = f32(10), f32(10), f32(9)
    assert path(kernels.bind("prox_step", y, g, x), y, 0.1, 2) == pytest.approx(
        [10, 9.1, 8.38], abs=2e-6
    )
    assert x == 10

    y = f32(10)
    assert path(kernels.bind("sgd_step", y, g), y, 0.1) == pytest.approx([10, 9.1, 8.2], abs=2e-6)


def test_implicit_prox_solves_the_leash() -> None:
    # (10 - .9 + .2*10)/1.2 = 9.25; (9.25 - .9 + 2)/1.2 = 8.625
    y = f32(10)
    step = kernels.bind("prox_step_implicit", y, f32(9), f32(10))
    assert path(step, y, 0.1, 2) == pytest.approx([10, 9.25, 8.625], abs=2e-6)


def test_implicit_prox_is_stable_where_the_explicit_step_explodes() -> None:
    explicit, implicit, x, g = f32(10), f32(10), f32(10), f32(9)
    for _ in range(50):
        kernels.prox_step(explicit, g, x, 0.1, 50)
        kernels.prox_step(implicit, g, x, 0.1, 50, implicit=True)
    assert abs(explicit[0]) > 1e20
    assert implicit[0] == pytest.approx(10 - 9 / 50, abs=1e-5)  # where g + mu*(y - x) = 0


def test_corrected_gradient() -> None:
    y = f32(0, 0, 0)
    c = f32(1, 2 / 3, 2 / 3)
    kernels.scaffold_step(y, f32(7, -1, 3), f32(5, -2, 1), c, 1)
    assert (-y).tolist() == pytest.approx([3, 5 / 3, 8 / 3], abs=1e-6)


def test_no_correction_while_all_controls_are_zero() -> None:
    rng = np.random.default_rng(0)
    start, g = (rng.standard_normal(1000).astype(np.float32) for _ in range(2))
    zeros = np.zeros(1000, np.float32)
    plain, corrected, shifted = start.copy(), start.copy(), start.copy()
    kernels.sgd_step(plain, g, 0.05)
    kernels.scaffold_step(corrected, g, zeros, zeros, 0.05)
    kernels.scaffold_step_shift(shifted, g, zeros, 0.05)
    assert plain.tobytes() == corrected.tobytes() == shifted.tobytes()


@pytest.mark.parametrize("implicit", [False, True])
@settings(deadline=None)
@given(n=st.integers(0, 40), seed=st.integers(0, 2**32), lr=st.floats(0, 100, width=32))
def test_mu_zero_is_sgd_to_the_bit(implicit: bool, n: int, seed: int, lr: float) -> None:
    rng = np.random.default_rng(seed)
    # x may hold infinities: 0*(y - x) would be NaN there, a plain step is not.
    y, g, x = (random_bits("f4", n, rng) for _ in range(3))
    plain = y.copy()
    kernels.sgd_step(plain, g, lr)
    kernels.prox_step(y, g, x, lr, 0.0, implicit=implicit)
    assert same_bits(y, plain)


def test_mu_that_rounds_to_zero_is_zero() -> None:
    y, plain = f32(1), f32(1)
    kernels.prox_step(y, f32(1), f32(np.inf), 0.5, 1e-60)
    kernels.sgd_step(plain, f32(1), 0.5)
    assert y == plain


def test_rates_are_rounded_to_float32_once() -> None:
    y = f32(0)
    kernels.sgd_step(y, f32(1), 0.1)
    assert -y[0] == np.float32(0.1)


# What is refused, and that y is then as it was.

STEPS: list[tuple[str, int, tuple[float, ...]]] = [
    ("sgd_step", 2, (0.1,)),
    ("prox_step", 3, (0.1, 2.0)),
    ("scaffold_step", 4, (0.1,)),
    ("scaffold_step_shift", 3, (0.1,)),
]


def call(name: str, arrays: list[Any], scalars: tuple[Any, ...]) -> None:
    getattr(kernels, name)(*arrays, *scalars)


@pytest.mark.parametrize(("name", "count", "scalars"), STEPS)
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda a: a.astype(np.float64), TypeError),
        (lambda a: a.astype(">f4"), TypeError),
        (lambda a: a.tolist(), TypeError),
        (lambda a: a[:-1], ValueError),
        (lambda a: np.repeat(a, 2)[::2], ValueError),
        (lambda a: a[::-1], ValueError),
        (lambda a: a.reshape(2, 2), ValueError),
        (lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(np.float32), ValueError),
    ],
    ids=["float64", "big-endian", "list", "short", "strided", "reversed", "2-D", "misaligned"],
)
def test_wrong_arrays_are_refused(
    name: str, count: int, scalars: tuple[float, ...], spoil: Callable[[Any], Any], error: type
) -> None:
    for position in range(count):
        arrays = [f32(1, 2, 3, 4) for _ in range(count)]
        y = arrays[0]
        arrays[position] = spoil(arrays[position])
        with pytest.raises(error):
            call(name, arrays, scalars)
        assert y.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(("name", "count", "scalars"), STEPS)
def test_overlap_with_y_is_refused(name: str, count: int, scalars: tuple[float, ...]) -> None:
    memory = np.arange(8, dtype=np.float32)
    for position in range(1, count):
        for other in (memory[:4], memory[2:6]):
            arrays = [memory[:4], *(f32(1, 2, 3, 4) for _ in range(count - 1))]
            arrays[position] = other
            with pytest.raises(ValueError, match="overlap"):
                call(name, arrays, scalars)
    assert memory.tolist() == list(range(8))


def test_operands_that_are_only_read_may_be_one_array() -> None:
    y, g = f32(1), f32(2)
    kernels.scaffold_step(y, g, g, g, 0.5)
    assert y == 0


def test_read_only_y_is_refused_and_read_only_operands_are_not() -> None:
    y, g = f32(1), f32(2)
    g.flags.writeable = False
    kernels.sgd_step(y, g, 0.5)
    assert y == 0
    y.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        kernels.sgd_step(y, g, 0.5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.1, -float("inf"), 1e39])
@pytest.mark.parametrize("bound", [False, True])
def test_wrong_rates_are_refused(bad: float, bound: bool) -> None:
    for name, count, scalars in STEPS:
        for position in range(len(scalars)):
            arrays = [f32(1, 2) for _ in range(count)]
            spoilt = [*scalars[:position], bad, *scalars[position + 1 :]]
            step = (
                kernels.bind(name, *arrays) if bound else partial(getattr(kernels, name), *arrays)
            )
            with pytest.raises(ValueError, match="lr" if position == 0 else "mu"):
                step(*spoilt)
            assert arrays[0].tolist() == [1, 2]


def test_a_rate_that_is_no_number_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        kernels.sgd_step(f32(1), f32(1), None)


def test_bind_names_what_there_is() -> None:
    with pytest.raises(ValueError, match="sgd_step, prox_step"):
        kernels.bind("adam_step", f32(1), f32(1))
    with pytest.raises(TypeError, match="y, g, x"):
        kernels.bind("prox_step", f32(1), f32(1))


def test_a_bound_step_keeps_its_arrays_alive() -> None:
    y = np.zeros(100_000, np.float32)
    step = kernels.bind("sgd_step", y, np.ones(100_000, np.float32))
    junk = [np.full(100_000, 7, np.float32) for _ in range(8)]
    step(1)
    assert (y == -1).all()
    del junk
