"""A user's arrays against a plan: what fits, and what each refusal says."""

from __future__ import annotations

import numpy as np
import pytest
from support.toy_plans import linear_loss, softmax_regression

from kellet.sdk.errors import DataError
from kellet.sdk.plan import InputSpec, LabelSpec, Plan
from kellet.sdk.plan.data import check_features, check_labels


@pytest.fixture(scope="module")
def plan() -> Plan:
    return softmax_regression(2, 3)


X = np.zeros((3, 2), np.float32)
Y = np.array([0, 1, 2])


def test_arrays_that_fit_are_not_copied(plan: Plan) -> None:
    x, y = plan.check_data(X, Y)
    assert x is X
    assert y is Y


def test_other_numbers_are_converted(plan: Plan) -> None:
    x, y = plan.check_data([[1, 2], [3, 4]], [0.0, 2.0])
    assert (x.dtype, x.tolist()) == (np.float32, [[1, 2], [3, 4]])
    assert (y.dtype, y.tolist()) == (np.int64, [0, 2])
    assert plan.check_data(np.asfortranarray(X), Y)[0].flags.c_contiguous
    assert plan.check_data(X.astype(bool), Y.astype(np.uint8))[1].dtype == np.int64


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_feature_that_is_not_finite_is_named(plan: Plan, bad: float) -> None:
    x = X.copy()
    x[2, 1] = bad
    with pytest.raises(DataError, match=r"in row 2, column 1.*fill or drop"):
        plan.check_data(x, Y)


def test_a_bad_column_is_called_by_its_name() -> None:
    x = np.zeros((4, 43), np.float32)
    x[1, 33] = x[3, 33] = np.nan
    with pytest.raises(DataError, match=r"row 1, column 33 \(XPEAK\), and 1 more"):
        Plan.open("wisdm").check_data(x, np.zeros(4, int))
    window = np.zeros((2, 9, 128))
    window[1, 3, 5] = np.nan
    with pytest.raises(DataError, match=r"row 1, at \(3, 5\) \(angular velocity x \[rad/s\]\)"):
        Plan.open("har").check_data(window, np.zeros(2, int))


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (np.zeros((0, 2)), np.zeros(0), "x has no rows"),
        (np.zeros((3, 4)), Y, r"shape \[3, 4\].*takes \[n, 2\]"),
        (np.zeros(2), Y, r"add the batch axis: x\[None\]"),
        (np.zeros((3, 1, 2)), Y, r"x.reshape\(-1, 2\)"),
        (np.float32(1), Y, "shape"),
        (X, Y[:2], "x has 3 rows and y has 2"),
        (X, Y[:, None], r"y has the shape \[3, 1\].*y.ravel\(\)"),
        (X, np.eye(3), r"y.argmax\(axis=1\)"),
        (X, [0, 1, 3], r"label 3 in row 2.*classes are 0 to 2.*map the labels"),
        (X, [1, 2, 3], r"label 3 in row 2.*count classes from 0: y - 1"),
        (X, [0, -1, 2], r"label -1 in row 1"),
        (X, [0, 1.5, 2], r"y has 1.5 in row 1.*a class is an integer"),
        (X, [0, np.nan, 2], r"y has nan in row 1"),
        (X, ["a", "b", "c"], "y has the dtype <U1"),
        (np.full((3, 2), "a"), Y, "x has the dtype <U1"),
        (np.full((3, 2), None), Y, "x has the dtype object"),
        ([[1, 2], [3]], Y, "x is not an array.*rows of equal length"),
        (np.full((3, 2), 1j), Y, "complex"),
        (np.full((3, 2), 1e39), Y, "does not fit in float32"),
        (X, np.array([0, 1, 2**64 - 1], np.uint64), "does not fit in int64"),
    ],
)
def test_what_does_not_fit_is_refused(plan: Plan, x: object, y: object, says: str) -> None:
    with pytest.raises(DataError, match=says):
        plan.check_data(x, y)  # type: ignore[arg-type]


def test_swapped_axes_are_told() -> None:
    with pytest.raises(DataError, match=r"x.transpose\(0, 2, 1\)"):
        Plan.open("har").check_data(np.zeros((2, 128, 9)), [0, 1])


def test_a_custom_loss_takes_any_integer_label() -> None:
    assert linear_loss(1).check_data([[1.0]], [-5])[1].tolist() == [-5]


def test_tokens_are_whole_and_in_range() -> None:
    tokens = InputSpec(shape=(2,), dtype="int64", low=0, high=9)
    assert check_features(tokens, [[0.0, 9.0]]).dtype == np.int64
    with pytest.raises(DataError, match=r"x has 10 in row 0, column 1.*from 0 to 9"):
        check_features(tokens, [[0, 10]])
    with pytest.raises(DataError, match=r"x has 0.5 in row 0.*token or index"):
        check_features(tokens, [[0, 0.5]])


def test_labels_may_be_numbers_of_any_shape() -> None:
    pair = LabelSpec(dtype="float32", shape=(2,))
    assert check_labels(pair, [[1, 2]]).dtype == np.float32
    with pytest.raises(DataError, match=r"y has nan in row 1"):
        check_labels(pair, [[1, 2], [np.nan, 0]])
    with pytest.raises(DataError, match=r"takes \[n, 2\]"):
        check_labels(pair, [1, 2])
