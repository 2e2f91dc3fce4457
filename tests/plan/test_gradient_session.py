"""Losses, gradients and scores of toy plans, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.toy_plans import linear_loss, quadratic, softmax_regression, stateful

from kellet.sdk.errors import DataError, UsageError
from kellet.sdk.plan import Metrics, Plan


def floats(rows: object) -> np.ndarray:
    return np.array(rows, np.float32)


def classes(*labels: int) -> np.ndarray:
    return np.array(labels, np.int64)


# ---- the flat vector


def test_vectors_are_aligned_fresh_and_in_the_order_of_roles() -> None:
    plan = stateful(w=1, m=2, f=3)
    assert (plan.n_train, plan.n_update, plan.n_params) == (1, 2, 3)
    assert plan.initial().tolist() == [1, 2, 3]
    assert [t.name for t in plan.manifest.tensors] == ["w", "m", "f"]
    first, second = plan.initial(), plan.initial()
    assert first.ctypes.data % 64 == second.ctypes.data % 64 == 0
    assert not np.shares_memory(first, second)
    session = plan.session()
    assert session.params.ctypes.data % 64 == session.grads.ctypes.data % 64 == 0
    assert session.params.shape == (3,)
    assert session.grads.shape == (1,)


def test_views_write_through_and_shorter_vectors_hold_fewer_tensors() -> None:
    plan = stateful(w=1, m=2, f=3)
    flat = plan.initial()
    plan.views(flat)["m"][0] = 7
    assert flat.tolist() == [1, 7, 3]
    assert list(plan.views(flat[:2])) == ["w", "m"]
    assert list(plan.views(flat[:1])) == ["w"]
    with pytest.raises(UsageError, match=r"shape \[4\]"):
        plan.views(np.zeros(4, np.float32))


def test_views_have_the_tensors_shapes() -> None:
    plan = softmax_regression(2, 3, initial=np.arange(9))
    views = plan.views(plan.initial())
    assert views["W"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert views["b"].tolist() == [6, 7, 8]


# ---- steps


def test_a_linear_loss_has_the_mean_row_as_gradient() -> None:
    session = linear_loss(3, 2.0, initial=[1, 2, 4]).session()
    # x @ w = 1, 4+4 = 8; the mean is 4.5, and the offset 2.
    assert session.step(floats([[1, 0, 0], [0, 2, 1]]), classes(0, 0)) == 6.5
    assert session.grads.tolist() == [0.5, 1.0, 0.5]


def test_a_quadratic_step_is_worked_by_hand() -> None:
    session = quadratic(initial=1.0).session()
    # rows (a, b): 0.5*2*(1-3)^2 = 4 and 0.5*4*(1-0)^2 = 2; gradients -4 and 4.
    assert session.step(floats([[2, 3], [4, 0]]), classes(0, 0)) == 3.0
    assert session.grads.tolist() == [0.0]
    session.params[0] = 2.0
    assert session.step(floats([[2, 3], [4, 0]]), classes(0, 0)) == 4.5
    assert session.grads.tolist() == [3.0]  # (-2 + 8) / 2


def test_softmax_at_zero_is_worked_by_hand() -> None:
    session = softmax_regression(2, 2).session()
    # p = 1/2 for both classes; mean of (p - truth) x over rows (2, 4) and (6, 0).
    loss = session.step(floats([[2, 4], [6, 0]]), classes(0, 1))
    assert loss == pytest.approx(math.log(2), abs=1e-7)
    assert session.grads.tolist() == [1.0, -1.0, -1.0, 1.0, 0.0, 0.0]


def test_a_step_writes_gradients_and_buffers_and_nothing_else() -> None:
    session = stateful(w=3.0, m=1.0, f=2.0).session()
    # loss = mean((x-1)*2)*3 with x = 4, 6: ((3+5)*2/2)*3 = 24; gradient 8.
    assert session.step(floats([[4], [6]]), classes(0, 0)) == 24.0
    assert session.grads.tolist() == [8.0]
    assert session.params.tolist() == [3.0, 3.0, 2.0]  # m = (1 + 5) / 2
    # The second step uses the new m: mean((x-3)*2) = 4, loss 12, m = (3+5)/2.
    assert session.step(floats([[4], [6]]), classes(0, 0)) == 12.0
    assert session.grads.tolist() == [4.0]
    assert session.params.tolist() == [3.0, 4.0, 2.0]


def test_parameters_and_gradients_stay_the_same_arrays() -> None:
    session = quadratic().session()
    params, grads = session.params, session.grads
    for size in (1, 5, 2, 64):
        rows = np.tile(floats([[1, size]]), (size, 1))
        assert session.step(rows, np.zeros(size, np.int64)) == size**2 / 2
        assert grads.tolist() == [-size]
    assert session.params is params
    assert session.grads is grads


def test_two_sessions_of_a_plan_are_independent() -> None:
    plan = quadratic(initial=1.0)
    one, two = plan.session(), plan.session()
    one.params[0] = 5.0
    assert two.step(floats([[1, 0]]), classes(0)) == 0.5
    assert one.step(floats([[1, 0]]), classes(0)) == 12.5
    assert plan.initial().tolist() == [1.0]


def test_a_strided_batch_gives_what_its_copy_gives() -> None:
    session = linear_loss(2, initial=[1, 10]).session()
    table = floats([[1, 9, 2, 9], [9, 9, 9, 9], [3, 9, 4, 9]])
    assert session.step(table[::2, ::2], classes(0, 0)) == (21 + 43) / 2


def test_the_same_batch_gives_the_same_bits() -> None:
    plan = Plan.open("har")
    numbers = np.random.default_rng(1)
    x = numbers.standard_normal((32, 9, 128)).astype(np.float32)
    y = numbers.integers(0, 6, 32)
    one, two = plan.session(), plan.session()
    losses = [session.step(x, y) for session in (one, two, one)]
    assert losses[0] == losses[1] == losses[2]
    assert one.grads.tobytes() == two.grads.tobytes()


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((2, 2)), np.zeros(2, np.int64)),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.int64)),
        (np.zeros(2, np.float32), np.zeros(2, np.int64)),
        (np.zeros((0, 2), np.float32), np.zeros(0, np.int64)),
        (np.zeros((2, 2), np.float32), np.zeros(2, np.int32)),
        (np.zeros((2, 2), np.float32), np.zeros(3, np.int64)),
        (np.zeros((2, 2), np.float32), np.zeros((2, 1), np.int64)),
    ],
)
def test_a_wrong_batch_is_refused_and_nothing_is_written(x: np.ndarray, y: np.ndarray) -> None:
    session = quadratic(initial=1.0).session()
    session.grads[:] = 7
    with pytest.raises(DataError, match=r"batch"):
        session.step(x, y)
    assert session.grads.tolist() == [7]
    assert session.params.tolist() == [1]


def test_more_threads_are_allowed() -> None:
    assert quadratic().session(threads=2).step(floats([[2, 1]]), classes(0)) == 1.0


# ---- evaluation


def test_scores_do_not_depend_on_the_size_of_batches() -> None:
    plan = linear_loss(1, 0.5, initial=[2])
    x = np.arange(200, dtype=np.float32)[:, None]
    assert plan.evaluator().scores(plan.initial(), x).tolist() == (2 * x[:, 0] + 0.5).tolist()


def test_evaluation_takes_the_vector_that_it_is_given() -> None:
    plan = linear_loss(1)
    evaluator = plan.evaluator()
    for w in (1.0, -3.0):
        params = plan.initial()
        params[0] = w
        assert evaluator.scores(params, [[2.0]]).tolist() == [2 * w]


def test_cross_entropy_and_accuracy_are_worked_by_hand() -> None:
    plan = softmax_regression(1, 2)
    params = plan.initial()
    params[:] = [0, math.log(3), 0, 0]  # scores (0, x log 3)
    found = plan.evaluator().evaluate(params, [[1.0], [1.0], [-1.0]], [1, 0, 0])
    # p(label) = 3/4, 1/4, 3/4.
    wanted = -(2 * math.log(0.75) + math.log(0.25)) / 3
    assert found.loss == pytest.approx(wanted, abs=1e-7)
    assert found.accuracy == 2 / 3
    assert found.n == 3


def test_cross_entropy_does_not_overflow() -> None:
    plan = softmax_regression(1, 2)
    params = plan.initial()
    params[:2] = [1e4, -1e4]
    assert plan.evaluator().evaluate(params, [[1.0]], [1]) == Metrics(2e4, 0.0, 1)


def test_a_custom_loss_is_the_step_graphs_over_all_rows() -> None:
    plan = quadratic(initial=1.0)
    # 100 rows of loss 0.5 and 30 of loss 2: batches of 64, 64 and 2.
    x = floats([[1, 0]] * 100 + [[1, 3]] * 30)
    found = plan.evaluator().evaluate(plan.initial(), x, np.zeros(130, np.int64))
    assert found == Metrics(loss=110 / 130, accuracy=None, n=130)


def test_evaluating_leaves_buffers_alone() -> None:
    plan = stateful(w=1.0, m=1.0, f=1.0)
    params = plan.initial()
    x = floats([[3]] * 130)
    found = plan.evaluator().evaluate(params, x, np.zeros(130, np.int64))
    assert found.loss == 2.0  # (3 - 1) in each of the three batches: m does not move
    assert params.tolist() == [1, 1, 1]


def test_a_vector_of_another_plan_is_refused() -> None:
    evaluator = quadratic().evaluator()
    for wrong in (np.zeros(2, np.float32), np.zeros(1)):
        with pytest.raises(UsageError, match=r"the plan's are float32 \[1\]"):
            evaluator.scores(wrong, floats([[1, 1]]))


def test_nothing_to_evaluate_is_refused() -> None:
    plan = quadratic()
    with pytest.raises(DataError, match=r"no rows"):
        plan.evaluator().evaluate(plan.initial(), np.zeros((0, 2)), np.zeros(0))


# ---- batches of many sizes, small and large


def test_batches_of_any_size_in_any_order_are_read_where_they_are_given() -> None:
    """The gradient of the mean of x @ w is the mean of the rows."""
    session = linear_loss(2).session()
    rng = np.random.default_rng(3)
    for size in (4, 1, 4, 40_000, 4, 40_000, 1, 7):  # 320 KB and more are bound where they lie
        x = rng.integers(-8, 8, (size, 2)).astype(np.float32)
        session.step(x, np.zeros(size, np.int64))
        assert session.grads == pytest.approx(x.mean(axis=0, dtype=np.float64), abs=1e-5)


def test_arrays_that_are_filled_anew_or_let_go_of_are_read_anew() -> None:
    session = linear_loss(1).session()
    x, y = floats([[1], [3]]), classes(0, 0)
    session.step(x, y)
    assert session.grads.tolist() == [2]
    x[:] = 5
    session.step(x, y)
    assert session.grads.tolist() == [5]
    assert session.step(floats([[7], [9]])[::-1], y) == 0  # w is 0; and in another order of memory
    assert session.grads.tolist() == [8]


def test_the_copies_of_small_batches_take_a_megabyte_at_most() -> None:
    session = linear_loss(1000).session()
    for size in range(1, 60):
        session.step(np.ones((size, 1000), np.float32), np.zeros(size, np.int64))
        kept = session._graph._small.values()
        assert sum(bound.x.nbytes + bound.y.nbytes for bound in kept) <= 1 << 20
        assert session.grads.tolist() == [1] * 1000


def test_a_batch_like_one_before_but_of_another_type_is_still_refused() -> None:
    session = linear_loss(1).session()
    session.step(floats([[1], [3]]), classes(0, 0))
    with pytest.raises(DataError, match="float64"):
        session.step(np.array([[1.0], [3.0]]), classes(0, 0))
    with pytest.raises(DataError, match="2 rows and 3 labels"):
        session.step(floats([[1], [3]]), classes(0, 0, 0))
