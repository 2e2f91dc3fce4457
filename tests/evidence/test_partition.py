"""Partitions: every sample once, the stated law, the limits, and the same bits for ever."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from kellet.sdk.errors import DataError, UsageError
from kellet.server import partition

LABELS = np.random.default_rng(3).permutation(np.repeat(np.arange(5), [400, 300, 200, 90, 10]))
VALUES = np.random.default_rng(4).normal(size=1000)

WAYS: dict[str, Callable[[int], partition.Parts]] = {
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 20, 0.1, seed=seed, least=8),
    "feature_skew": lambda seed: partition.feature_skew(VALUES, 20, 0.1, seed=seed, least=8),
    "similarity": lambda seed: partition.similarity(LABELS, 20, 10, seed=seed),
    "by_label": lambda seed: partition.by_label(LABELS, 7, 2, seed=seed),
    "quantity": lambda seed: partition.quantity(1000, 20, 0.5, seed=seed, least=8),
}
GOLDEN = {
    "dirichlet": "e1b4d16b8fd6e4f1",
    "feature_skew": "235744aaf64feede",
    "similarity": "f03c5f0058989147",
    "by_label": "f8930c8755e20cb9",
    "quantity": "b26c592fda7c0c2b",
}


def digest(parts: partition.Parts) -> str:
    """Of the sizes, then of the positions, as little-endian int64."""
    sizes = np.array([len(part) for part in parts])
    return hashlib.sha256(np.concatenate([sizes, *parts]).astype("<i8").tobytes()).hexdigest()[:16]


def labels_of(parts: partition.Parts) -> list[Counter[int]]:
    return [Counter(LABELS[part].tolist()) for part in parts]


@pytest.mark.parametrize("way", WAYS)
def test_each_sample_belongs_to_one_client(way):
    for seed in range(5):
        parts = WAYS[way](seed)
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
        assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
        if way != "by_label":
            assert len(parts) == 20
            assert min(map(len, parts)) >= 8


@pytest.mark.parametrize("way", WAYS)
def test_the_seed_decides_and_nothing_else(way):
    assert digest(WAYS[way](0)) == digest(WAYS[way](0)) == GOLDEN[way]
    assert digest(WAYS[way](1)) != GOLDEN[way]


def test_dirichlet_is_the_law_that_its_docstring_states():
    """Worked again from the words, with no client below the least."""
    key = hashlib.sha256(b"dirichlet/9").digest()[:16]
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
    expected: list[list[int]] = [[] for _ in range(4)]
    for label in range(5):
        shuffled = rng.permutation([i for i in range(1000) if LABELS[i] == label]).tolist()
        p = rng.dirichlet([1.0] * 4)
        cuts = [0, *(round(len(shuffled) * float(np.cumsum(p)[j])) for j in range(4))]
        for client in range(4):
            expected[client] += shuffled[cuts[client] : cuts[client + 1]]
    found = partition.dirichlet(LABELS, 4, 1.0, seed=9)
    assert [part.tolist() for part in found] == [sorted(part) for part in expected]


def test_a_large_alpha_gives_everyone_the_pools_mixture():
    for counts in labels_of(partition.dirichlet(LABELS, 10, math.inf)):
        assert counts == {0: 40, 1: 30, 2: 20, 3: 9, 4: 1}
    for counts in labels_of(partition.dirichlet(LABELS, 10, 1e12)):
        assert all(abs(counts[k] - n) <= 1 for k, n in enumerate([40, 30, 20, 9, 1]))


def test_a_small_alpha_gives_each_label_to_one_client():
    undisturbed = 0
    for seed in range(20):
        parts = partition.dirichlet(LABELS, 3, 1e-9, seed=seed)
        if min(map(len, parts)) > 1:  # else a client that had nothing was given a sample
            undisturbed += 1
            assert [sum(k in LABELS[part] for part in parts) for k in range(5)] == [1] * 5
    assert undisturbed >= 5


def test_alpha_orders_the_skew():
    def entropy(alpha: float) -> float:
        found = []
        for seed in range(10):
            for counts in labels_of(partition.dirichlet(LABELS, 10, alpha, seed=seed)):
                p = np.array(list(counts.values())) / counts.total()
                found.append(float(-(p * np.log(p)).sum()))
        return float(np.mean(found))

    assert entropy(0.01) < 0.2 < entropy(0.1) < 0.6 < entropy(1) < 1.1 < entropy(100)


def test_the_poor_are_filled_from_the_richest_by_its_commonest_label():
    """Label 0 goes to one client, label 1 too; the last client, with nothing, takes of label 0."""
    labels = [0] * 7 + [1] * 3
    for seed in range(50):
        whole = partition.dirichlet(labels, 3, 1e-9, seed=seed)
        sizes = sorted(map(len, whole))
        if sizes == [1, 3, 6]:
            taken = next(part for part in whole if len(part) == 1)
            assert taken[0] < 7
            break
    else:
        pytest.fail("no seed gave the labels to two clients")
    filled = partition.dirichlet(labels, 3, 1e-9, seed=seed, least=3)
    assert sorted(map(len, filled)) == [3, 3, 4]
    assert [len(set(np.array(labels)[part])) for part in filled] == [1, 1, 1]


def test_no_client_is_below_the_least_even_where_it_takes_everything():
    parts = partition.dirichlet(LABELS, 100, 0.001, seed=1, least=10)
    assert [len(part) for part in parts] == [10] * 100


def test_similarity_by_hand():
    labels = [2, 1, 0, 2, 1, 0]
    assert [p.tolist() for p in partition.similarity(labels, 3, 0)] == [[2, 5], [1, 4], [0, 3]]
    assert [p.tolist() for p in partition.similarity(labels, 2, 0)] == [[1, 2, 5], [0, 3, 4]]


@pytest.mark.parametrize("percent", [0, 10, 33.3, 100])
def test_similarity_gives_equal_shares_and_the_stated_part_by_chance(percent):
    parts = partition.similarity(LABELS, 7, percent, seed=5)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    mixtures = labels_of(parts)
    if percent == 0:  # a run of 142 or 143 crosses two borders between labels at most
        assert max(map(len, mixtures)) <= 3
    if percent == 10:
        assert all(sum(n for _, n in c.most_common(3)) / c.total() > 0.9 for c in mixtures)
        assert min(map(len, mixtures)) >= 3
    if percent == 100:
        assert all(abs(c[0] / c.total() - 0.4) < 0.12 for c in mixtures)


def test_by_label_gives_exactly_so_many_labels():
    for clients, each in [(5, 1), (10, 1), (7, 2), (3, 5), (2, 3)]:
        parts = partition.by_label(LABELS, clients, each, seed=clients)
        assert [len(counts) for counts in labels_of(parts)] == [each] * clients
    # Ten clients with one label each: two share a label evenly.
    sizes = sorted(len(part) for part in partition.by_label(LABELS, 10, 1))
    assert sizes == [5, 5, 45, 45, 100, 100, 150, 150, 200, 200]


def test_quantity_moves_sizes_and_not_mixtures():
    parts = partition.quantity(1000, 5, 0.5, seed=3)
    sizes = [len(part) for part in parts]
    assert max(sizes) > 3 * min(sizes)
    biggest = labels_of(parts)[sizes.index(max(sizes))]
    assert biggest[0] / biggest.total() == pytest.approx(0.4, abs=0.06)


def test_equal_values_stay_in_one_range():
    parts = partition.feature_skew([0.0] * 600 + [1.0] * 400, 2, 1e-9, seed=0, bins=10)
    assert sorted(map(len, parts)) in ([400, 600], [1, 999])


def test_natural_clients_come_in_order():
    found = partition.natural(["b", "a", "b", "c", "a"])
    assert [part.tolist() for part in found] == [[1, 4], [0, 2], [3]]
    assert [part.tolist() for part in partition.natural([7, 7, 3])] == [[2], [0, 1]]


def test_clients_carry_their_own_data_and_names_that_sort():
    parts = partition.similarity([0] * 11, 11, 100)
    x, y = np.arange(22).reshape(11, 2), np.arange(11)
    clients = partition.clients_of(parts, x, y)
    assert list(clients) == sorted(clients) == [f"client-{i:02}" for i in range(11)]
    for part, (own_x, own_y) in zip(parts, clients.values(), strict=True):
        assert np.array_equal(own_x, x[part])
        assert np.array_equal(own_y, y[part])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: partition.dirichlet([0, 1], 3, 1.0), "2 samples for 3 clients"),
        (lambda: partition.dirichlet([0, 1], 2, 0.0), "alpha = 0.0"),
        (lambda: partition.dirichlet([0, 1], 2, math.nan), "alpha = nan"),
        (lambda: partition.dirichlet([0, 1], 0, 1.0), "clients = 0"),
        (lambda: partition.dirichlet([0, 1], 1, 1.0, least=0), "least = 0"),
        (lambda: partition.dirichlet(LABELS, 20, 1.0, least=51), "ask for 19 clients at most"),
        (lambda: partition.similarity([0, 1], 2, 101), "percent = 101"),
        (lambda: partition.by_label(LABELS, 2, 2), "from 3 to 5"),
        (lambda: partition.by_label(LABELS, 2, 6), "from 3 to 5"),
        (lambda: partition.by_label(LABELS, 100, 1), "label 4 is rare"),
        (lambda: partition.feature_skew([0.0, math.nan], 1, 1.0), "finite"),
        (lambda: partition.feature_skew([0.0, 1.0], 1, 1.0, bins=0), "bins = 0"),
    ],
)
def test_what_cannot_be_is_refused(call, says):
    with pytest.raises(UsageError, match=says):
        call()


@pytest.mark.parametrize("labels", [[], [0.5], [[0, 1]]])
def test_labels_that_are_none_are_refused(labels):
    with pytest.raises(DataError):
        partition.dirichlet(labels, 1, 1.0)


def test_natural_needs_one_owner_a_sample():
    with pytest.raises(DataError):
        partition.natural([])
