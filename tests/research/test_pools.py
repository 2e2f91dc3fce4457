"""Pools and their partitions, by name."""

from __future__ import annotations

import numpy as np
import pytest

from kellet.sdk import tasks
from kellet.sdk.errors import DataError, UsageError
from kellet.server import partition as ways
from kellet.server.research import Given, Partition, People, Pool, partitioned

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 120)
X = RNG.standard_normal((120, 2, 2)).astype(np.float32)
OWNERS = np.repeat([7, 3, 9], 40)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("dirichlet:0.3", lambda: ways.dirichlet(Y, 4, 0.3, seed=5, least=10)),
        ("similarity:10", lambda: ways.similarity(Y, 4, 10, seed=5)),
        ("by-label:2", lambda: ways.by_label(Y, 4, 2, seed=5)),
        ("quantity:0.5", lambda: ways.quantity(120, 4, 0.5, seed=5, least=10)),
        (
            "feature:0.5",
            lambda: ways.feature_skew(
                X[:, 0, 0].astype(np.float64) + X[:, 0, 1] + X[:, 1, 0] + X[:, 1, 1],
                4, 0.5, seed=5, least=10,
            ),
        ),
    ],
)  # fmt: skip
def test_each_name_is_its_way(text, parts):
    clients = partitioned((X, Y), text, 4, seed=5)
    assert list(clients) == ["client-0", "client-1", "client-2", "client-3"]
    for (x, y), part in zip(clients.values(), parts(), strict=True):
        assert np.array_equal(y, Y[part])
        assert np.array_equal(x, X[part])


def test_a_feature_skew_by_one_column():
    pool = Pool(X, Y)
    chosen = Partition(kind="feature", amount=0.2, clients=3, column=3)
    expected = ways.feature_skew(X[:, 1, 1], 3, 0.2, seed=1, least=10)
    for part, same in zip(chosen.of(pool, 1), expected, strict=True):
        assert np.array_equal(part, same)
    with pytest.raises(UsageError, match="feature = 4: a sample has 4 values"):
        Partition(kind="feature", amount=0.2, clients=3, column=4).of(pool, 0)


def test_owners_are_clients():
    clients = partitioned((X, Y, OWNERS), "natural")
    assert [len(y) for _, y in clients.values()] == [40, 40, 40]
    assert np.array_equal(clients["client-0"][1], Y[OWNERS == 3])
    with pytest.raises(DataError, match="does not say whose its samples are"):
        partitioned((X, Y), "natural")
    with pytest.raises(UsageError, match="clients = None"):
        partitioned((X, Y), "quantity:1")


def test_people_of_a_task():
    """The six of the test are the same whatever the partition, and natural is one each."""
    people = People(tasks.task("wisdm"))
    split = tasks.split(people.task, 8, 3)
    as_devices = people.fleet(None, 8, 3)
    assert np.array_equal(
        as_devices.clients["device-2"][1], people.task.load(split.devices["device-2"])[1]
    )
    natural = people.fleet(Partition(kind="natural"), None, 3)
    assert len(natural.clients) == 30
    first = sorted(set(people.task.users) - set(split.test_users))[0]
    assert np.array_equal(natural.clients["client-00"][0], people.task.load_user(first)[0])
    assert as_devices.test is not None
    assert natural.test is not None
    assert np.array_equal(natural.test[0], as_devices.test[0])
    own = People(people.task, test=(X, Y)).fleet(None, 2, 0)
    assert own.test is not None
    assert own.test[0] is X


def test_what_is_no_pool():
    for arrays, words in (
        ((X, Y[:-1]), "120 and 119 samples"),
        ((X, Y, OWNERS[:-1]), "120 and 120 and 119"),
        ((X[:0], Y[:0]), "0 and 0 samples"),
        (X, "is a ndarray"),
        ((X,), "is a tuple of 1"),
    ):
        with pytest.raises(DataError, match=words):
            Pool.of(arrays)
    with pytest.raises(UsageError, match="no partition is given"):
        Pool(X, Y).fleet(None, 3, 0)
    with pytest.raises(UsageError, match="shared out among clients already"):
        Given({"a": (X, Y)}).fleet(Partition(kind="natural"), None, 0)


def test_digests_change_where_the_data_does():
    other = X.copy()
    other[5, 1, 1] += 1
    pools = [Pool(X, Y), Pool(other, Y), Pool(X, Y, OWNERS), Pool(X, Y, OWNERS.astype(str)),
             Pool(X, Y, test=(X, Y)), Given({"a": (X, Y)}), Given({"b": (X, Y)}),
             People(tasks.task("wisdm"))]  # fmt: skip
    digests = [pool.digest() for pool in pools]
    assert len(set(digests)) == len(digests)
    assert Pool(X.copy(), Y.copy()).digest() == digests[0]
