"""What is counted, by hand; and the noise, against its law."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from kellet.sdk.errors import DataError
from kellet.sdk.histogram import count, data_digest, discrete_laplace, noised, to_shares
from kellet.sdk.protocol.histograms import Histogram, Question


def floats(raw: bytes) -> list[float]:
    return np.frombuffer(raw, "<f4").tolist()


def test_labels_and_columns_are_counted_by_hand() -> None:
    x = np.array([[0.0, 5.0], [1.0, 5.0], [1.5, -1.0], [2.0, 0.0]], np.float32)
    question = Question(classes=3, columns=(0, 1), edges=((1.0, 2.0), (0.0,)))
    assert question.groups == (3, 3, 2)
    # Column 0: 0 | 1, 1.5 | 2, since bins begin at their edge; column 1: -1 | 5, 5, 0.
    assert count(x, np.array([0, 2, 2, 2]), question) == [1, 0, 3, 1, 2, 1, 1, 3]


def test_a_sample_of_many_values_counts_once_in_a_column_by_their_mean() -> None:
    x = np.zeros((2, 2, 4), np.float32)
    x[0, 1] = [0, 0, 4, 4]
    question = Question(classes=2, columns=(1,), edges=((1.0, 3.0),))
    assert count(x, np.array([1, 1]), question) == [0, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("y", "columns", "words"),
    [
        ([0.5, 1.0], (), "whole number"),
        ([[0], [1]], (), "whole number"),
        ([0], (), "whole number"),
        ([0, 2], (), "2 classes"),
        ([-1, 0], (), "2 classes"),
        ([0, 1], (3,), "column 3"),
    ],
)
def test_what_cannot_be_counted_is_refused(y: object, columns: tuple[int, ...], words: str) -> None:
    question = Question(classes=2, columns=columns, edges=((0.0,),) * len(columns))
    with pytest.raises(DataError, match=words):
        count(np.zeros((2, 3), np.float32), y, question)  # type: ignore[arg-type]


def test_shares_sum_to_one_in_each_group_and_negative_counts_are_none() -> None:
    assert floats(to_shares([1, 3, -2, 4], [2, 2])) == [0.25, 0.75, 0.0, 1.0]
    assert floats(to_shares([-1, 0, -5, -5], [2, 2])) == [0.5, 0.5, 0.5, 0.5]


def test_the_digest_names_the_samples() -> None:
    x, y = np.zeros((2, 3), np.float32), np.array([0, 1])
    names = {
        data_digest(x, y),
        data_digest(x.reshape(3, 2), y),
        data_digest(x.astype(np.float64), y),
        data_digest(x, y[::-1]),
    }
    assert len(names) == 4
    assert data_digest(x.copy(), y.tolist()) == data_digest(x, y)


# -- questions and answers on the wire ----------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": 250, "columns": (0,), "edges": (tuple(map(float, range(6))),)},  # 257 bins
        {"classes": 2, "columns": (0,), "edges": ()},
        {"classes": 2, "columns": (0, 0), "edges": ((0.0,), (0.0,))},
        {"classes": 2, "columns": (0,), "edges": ((),)},
        {"classes": 2, "columns": (0,), "edges": ((1.0, 1.0),)},
        {"classes": 2, "columns": (0,), "edges": ((math.nan,),)},
        {"classes": 2, "columns": (0,), "edges": ((0.0, math.inf),)},
    ],
)
def test_a_question_that_nobody_can_answer_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"bins|edges"):
        Question(**wrong)  # type: ignore[arg-type]


def test_256_bins_are_the_most_and_a_question_fits_in_an_announcement() -> None:
    edges = (tuple(i / 7 for i in range(249)),)
    largest = Question(classes=6, columns=(0,), edges=edges)
    assert largest.bins == 256
    many = Question(classes=2, columns=tuple(range(70000, 70127)), edges=((0.5,),) * 127)
    assert many.bins == 256
    for asked in (largest, many):
        assert len(msgspec.msgpack.encode(asked)) < 2400  # of 4,096


def test_edges_given_as_whole_numbers_ask_the_same() -> None:
    asked = Question(classes=2, columns=(0,), edges=((0, 1),))
    assert asked.name == Question(classes=2, columns=(0,), edges=((0.0, 1.0),)).name
    assert asked.name != asked.labels.name


@pytest.mark.parametrize(
    "shares",
    [b"\0" * 9, np.array([0.5, np.nan], "<f4").tobytes(), np.array([-0.5, 1.5], "<f4").tobytes()],
)
def test_shares_that_are_none_are_refused(shares: bytes) -> None:
    with pytest.raises(ValueError, match="shares"):
        Histogram(question=bytes(8), shares=shares)


# -- noise ------------------------------------------------------------------------------


def test_noise_has_the_law_that_is_promised() -> None:
    """Rate 1/2: P(z) = (1 - r) / (1 + r) r^abs(z), r = exp(-1/2)."""
    rng = random.Random(5)
    draws = 20_000
    seen = Counter(discrete_laplace(Fraction(1, 2), rng.randrange) for _ in range(draws))
    r = math.exp(-0.5)
    for z in range(-4, 5):
        p = (1 - r) / (1 + r) * r ** abs(z)
        assert seen[z] == pytest.approx(draws * p, abs=4.5 * math.sqrt(draws * p * (1 - p)))


def test_noise_worked_by_hand() -> None:
    """Rate 1: t = 1, so u = 0, which passes; v counts successes of probability 1/e."""
    # u = 0 of 1; Bernoulli(exp(0)): 0 < 0 fails at k = 1, odd: true.
    # Bernoulli(exp(-1)): draws below 1, 2, 3, ...: 0 < 1 passes (k = 2), 1 < 1 fails, even: false.
    # So v = 0, size 0; the sign 1 (negative zero) begins again. The second time:
    # 0 < 1, 0 < 1 (k = 3), 2 < 1 fails, odd: true, v = 1; then 0, 1: false. Sign 1: -1.
    script = iter([0, 0, 0, 1, 1, 0, 0, 0, 0, 2, 0, 1, 1])
    bounds = []

    def below(n: int) -> int:
        bounds.append(n)
        return next(script)

    assert discrete_laplace(Fraction(1), below) == -1
    assert bounds == [1, 1, 1, 2, 2, 1, 1, 1, 2, 3, 1, 2, 2]
    assert next(script, None) is None


def test_the_noise_grows_with_the_groups_that_one_sample_is_in() -> None:
    """Each count has the rate epsilon / groups: 3 groups at epsilon 3 are 1 group at 1."""
    one = noised([10] * 50, 1, 1.0, random.Random(1).randrange)
    three = noised([10] * 50, 3, 3.0, random.Random(1).randrange)
    assert one == three != [10] * 50
    assert noised([10] * 50, 1, 3.0, random.Random(1).randrange) != one


def test_an_epsilon_that_is_no_fraction_of_two_is_rounded_down() -> None:
    below = random.Random(2).randrange
    assert noised([0] * 9, 1, 2**-20, below) != [0] * 9
    a = noised([0] * 9, 1, 0.1, random.Random(3).randrange)
    assert a == noised([0] * 9, 1, int(0.1 * 2**20) / 2**20, random.Random(3).randrange)
