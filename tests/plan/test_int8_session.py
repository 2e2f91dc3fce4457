"""Int8 sessions of small plans: what is loaded, computed and handed back."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.toy_plans import linear_loss, softmax_regression, stateful

from kellet.kernels import quantise, row_layout
from kellet.sdk.errors import DataError, PlanError, UsageError
from kellet.sdk.plan import GradientSession, Int8Session, Plan
from kellet.sdk.plan.int8_session import HEADROOM
from kellet.sdk.variants import add_variants, sparse

ZOO = Path(__file__).parents[1] / "variants" / "zoo"


def opened(plan: Plan, scheme: str = "w8.row") -> Int8Session:
    session = plan.session(scheme)
    assert isinstance(session, Int8Session)
    return session


@pytest.fixture(scope="module")
def softmax() -> Plan:
    """W [2, 3] and b [2]."""
    return add_variants(softmax_regression(3, 2, initial=[1, -1, 0.5, 0, 0, 0, 3, 4]), ["w8.row"])


@pytest.fixture(scope="module")
def batch_norm() -> Plan:
    """Weights, vectors and buffers."""
    return add_variants(Plan.open(ZOO / "batch_norm.kplan"), ["w8.row", "w8.block64"])


def test_a_step_at_int8_weights_is_worked_by_hand(softmax: Plan) -> None:
    session = opened(softmax)
    session.weights.values[:] = [2, 0, 0, -4, 0, 0]
    session.weights.scales[:] = [0.5, 0.25]
    session.rest[:] = 0
    # W = [[1, 0, 0], [-1, 0, 0]]: x = (0, 5, 7) and (0, 1, 3) score 0 and 0; p = 1/2.
    x = np.array([[0, 5, 7], [0, 1, 3]], np.float32)
    assert session.step(x, np.array([0, 0])) == pytest.approx(math.log(2), abs=1e-7)
    assert session.weight_grads.tolist() == [0, -1.5, -2.5, 0, 1.5, 2.5]
    assert session.rest_grads.tolist() == [-0.5, 0.5]
    # With x = (1, 0, 0): scores 1 and -1, p of class 1 is 1 / (1 + e^2).
    p = 1 / (1 + math.exp(2))
    one = np.array([[1, 0, 0]], np.float32)
    assert session.step(one, np.array([1])) == pytest.approx(-math.log(p))


def step_of_ones(session: Int8Session) -> float:
    return session.step(np.ones((1, 3), np.float32), np.array([0]))


def test_scales_and_values_are_read_where_they_lie(softmax: Plan) -> None:
    session = opened(softmax)
    session.rest[:] = 0
    session.weights.values[:] = 0
    assert step_of_ones(session) == pytest.approx(math.log(2))
    session.weights.values[0] = 100
    session.weights.scales[0] = 0.01  # score 1 against 0
    assert step_of_ones(session) == pytest.approx(math.log(1 + math.exp(-1)), abs=1e-6)
    session.rest[1] = 1.0  # and 1 against 1
    assert step_of_ones(session) == pytest.approx(math.log(2), abs=1e-6)


def test_float32_is_the_other_kind_of_session(softmax: Plan) -> None:
    assert isinstance(softmax.session(), GradientSession)
    assert isinstance(softmax.session("f32"), GradientSession)
    assert opened(softmax).scheme == "w8.row/1"
    assert softmax.schemes == ("f32/1", "w8.row/1")
    with pytest.raises(UsageError, match="no scheme"):
        softmax.session("w9")
    with pytest.raises(PlanError, match=r"no variant w8.block64/1.*plan derive"):
        softmax.session("w8.block64")
    with pytest.raises(PlanError, match="no variant"):
        softmax.self_test("w8.block64")


def test_a_model_is_loaded_tensor_by_tensor_by_the_seed(batch_norm: Plan) -> None:
    session = opened(batch_norm)
    x = batch_norm.initial()
    session.load(x, seed=7)
    for place, held in enumerate(session.layout.weights):
        wanted = quantise(
            x[held.flat].copy(),
            row_layout([held.shape]),
            headroom=HEADROOM,
            seed=7,
            step=place,
        )
        assert np.array_equal(session.weights.values[held.values], wanted.values)
        assert np.array_equal(session.weights.scales[held.scales], wanted.scales)
    for floats in session.layout.rest:
        assert np.array_equal(session.rest[floats.rest], x[floats.flat])
    first = session.weights.copy()
    session.load(x, seed=8)
    assert not np.array_equal(session.weights.values, first.values)
    assert np.array_equal(session.weights.scales, first.scales)
    session.load(x[: batch_norm.n_update], seed=7)
    assert np.array_equal(session.weights.values, first.values)


def test_a_new_session_stands_at_the_initial_parameters(batch_norm: Plan) -> None:
    one, two = opened(batch_norm), opened(batch_norm)
    two.load(batch_norm.initial(), seed=0)
    assert np.array_equal(one.weights.values, two.weights.values)
    assert np.array_equal(one.rest, two.rest)


@pytest.mark.parametrize("scheme", ["w8.row", "w8.block64"])
def test_decoded_weights_are_within_a_unit_of_the_model(batch_norm: Plan, scheme: str) -> None:
    session = opened(batch_norm, scheme)
    x = batch_norm.initial()
    found = session.decoded()
    assert found.shape == (batch_norm.n_update,)
    for held in session.layout.weights:
        rows = np.abs(found[held.flat] - x[held.flat]).reshape(held.shape)
        unit = np.abs(x[held.flat]).reshape(held.shape).max(axis=1) * HEADROOM / 127
        assert (rows.max(axis=1) <= unit * 1.0001).all()
        assert rows.max() > 0
    out = np.zeros(batch_norm.n_update, np.float32)
    assert session.decoded(out) is out
    assert np.array_equal(out, found)
    with pytest.raises(UsageError):
        session.decoded(out[1:])


def test_gradients_are_named_by_their_place(batch_norm: Plan) -> None:
    session = opened(batch_norm)
    flat = np.zeros(batch_norm.n_train, np.float32)
    session.weight_grads[:] = 1
    session.rest_grads[:] = 2
    for place, found in session.gradients():
        flat[place] = found
    trained = [held for held in session.layout.rest if held.tensor.role == "train"]
    assert all((flat[held.flat] == 1).all() for held in session.layout.weights)
    assert all((flat[held.flat] == 2).all() for held in trained)
    assert trained


def test_buffers_move_as_in_float32(batch_norm: Plan) -> None:
    session, reference = opened(batch_norm), batch_norm.session()
    session.decoded(reference.params)
    x, y = batch_norm.expected.batch.array(), batch_norm.expected.labels.array()
    for _ in range(3):
        session.step(x, y)
        reference.step(x, y)
    moved = session.decoded()[batch_norm.n_train :]
    assert np.abs(moved - reference.params[batch_norm.n_train :]).max() <= 1e-6
    assert not np.array_equal(moved, batch_norm.initial()[batch_norm.n_train :])


def test_frozen_tensors_are_the_plans_to_the_nearest(batch_norm: Plan) -> None:
    plan = sparse(batch_norm, biases=True)
    session = opened(plan)
    assert session.weight_grads.size == session.weights.size == 0
    wild = plan.initial()
    wild[plan.n_update :] = np.nan
    session.load(wild, seed=3)
    for held, value in session.frozen():
        wanted = plan.initial()[held.flat]
        unit = np.abs(wanted).reshape(held.shape).max(axis=1) / 127
        error = np.abs(value - wanted).reshape(held.shape).max(axis=1)
        assert (error <= 0.5001 * unit).all()
    assert math.isfinite(session.step(plan.expected.batch.array(), plan.expected.labels.array()))


def test_vectors_are_aligned_and_stay_the_same(batch_norm: Plan) -> None:
    session = opened(batch_norm)
    held = (session.weights.values, session.weights.scales, session.weight_grads, session.rest)
    assert all(array.ctypes.data % 64 == 0 for array in (*held, session.rest_grads))
    session.load(batch_norm.initial(), seed=1)
    session.step(batch_norm.expected.batch.array(), batch_norm.expected.labels.array())
    now = (session.weights.values, session.weights.scales, session.weight_grads, session.rest)
    assert all(old is new for old, new in zip(held, now, strict=True))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_a_model_that_int8_cannot_hold_is_refused(softmax: Plan, bad: float) -> None:
    x = softmax.initial()
    x[1] = bad
    with pytest.raises(PlanError, match="W cannot be held in int8"):
        opened(softmax).load(x, seed=0)


@pytest.mark.parametrize(
    "x", [np.zeros(7, np.float32), np.zeros(8, np.float64), np.zeros((1, 8), np.float32)]
)
def test_another_vector_is_refused(softmax: Plan, x: np.ndarray) -> None:
    with pytest.raises(UsageError, match="the model is"):
        opened(softmax).load(x, seed=0)


def test_a_row_of_zeros_and_a_plan_of_zeros_are_held() -> None:
    plan = add_variants(softmax_regression(3, 2), ["w8.row"])
    session = opened(plan)
    assert not session.weights.values.any()
    assert step_of_ones(session) == pytest.approx(math.log(2))
    plan.self_test("w8.row")


def test_a_batch_that_does_not_fit_is_refused(softmax: Plan) -> None:
    session = opened(softmax)
    with pytest.raises(DataError, match="batch is float32"):
        session.step(np.ones((1, 4), np.float32), np.array([0]))
    with pytest.raises(DataError, match="rows"):
        session.step(np.ones((2, 3), np.float32), np.array([0]))


def test_the_frozen_part_completes_a_model() -> None:
    plan = stateful(w=1, m=2, f=3)
    whole = plan.completed(np.array([5, 6], np.float32))
    assert whole.tolist() == [5, 6, 3]
    assert whole.ctypes.data % 64 == 0
    with pytest.raises(UsageError, match=r"2 elements"):
        plan.completed(plan.initial())
    line = linear_loss(3, initial=[1, 2, 4])
    assert line.completed(np.zeros(3, np.float32)).tolist() == [0, 0, 0]
