"""Distances by hand, the graph, and whom the selection by similar data takes."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from kellet.sdk.errors import DataError, UsageError
from kellet.sdk.histogram import to_shares
from kellet.sdk.plan import InputSpec, LabelSpec, Manifest
from kellet.sdk.protocol.histograms import Histogram, Question
from kellet.server.selection import Candidate, FeatureBins, Fleet, Similar, Told
from kellet.server.selection.distances import Neighbours, hellinger, jensen_shannon
from kellet.server.selection.features import question_about, read_histogram
from kellet.server.selection.tallies import Tallies


def told(*groups: list[float]) -> Told:
    sizes = tuple(map(len, groups))
    return Told(np.concatenate(groups).astype("<f4").tobytes(), sizes)


def kind(k: int, of: int = 3) -> Told:
    return told(np.eye(of)[k].tolist())


def fleet(**histograms: Told | None) -> Fleet:
    known = {name: Candidate(name, told=shares) for name, shares in histograms.items()}
    return Fleet(sorted(known), known.__getitem__)


def rows(*shares: list[float]) -> np.ndarray:
    return np.array(shares)


# -- distances ---------------------------------------------------------------------------


def test_hellinger_by_hand() -> None:
    apart = hellinger(rows([1, 0], [0.5, 0.5]), rows([1, 0], [0, 1], [0.5, 0.5]))
    half = math.sqrt(1 - math.sqrt(0.5))
    assert apart == pytest.approx(np.array([[0, 1, half], [half, half, 0]]), abs=1e-9)


def test_jensen_shannon_by_hand() -> None:
    apart = jensen_shannon(rows([1, 0]), rows([1, 0], [0, 1], [0.5, 0.5]))
    # The mean is (3/4, 1/4), of .811278 bits; less half of 0 and half of 1.
    assert apart == pytest.approx(np.array([[0, 1, math.sqrt(0.8112781244591328 - 0.5)]]), abs=1e-9)


def test_equal_histograms_are_at_no_distance_though_their_sums_miss_one() -> None:
    thirds = [1 / 3, 1 / 3, 1 / 3]
    for measure in (hellinger, jensen_shannon):
        assert measure(rows(thirds), rows(thirds)).tolist() == [[0.0]]


def test_labels_and_columns_are_one_half_each() -> None:
    """Labels 0 apart; of two columns one is equal, the other 1 apart: (0 + 1/2) / 2."""
    graph = Neighbours(
        [told([1, 0], [1, 0], [1, 0]), told([1, 0], [1, 0], [0, 1])], "hellinger", k=1
    )
    assert graph.distances(np.array([0])).tolist() == [[0, 0.25]]


def test_with_one_that_tells_only_labels_the_labels_are_all() -> None:
    graph = Neighbours(
        [told([1, 0], [1, 0]), told([1, 0]), told([0, 1], [1, 0]), told([1, 0], [0, 1])],
        "hellinger",
        k=1,
    )
    assert graph.distances(np.array([1, 0])).tolist() == [[0, 0, 1, 0], [0, 0, 0.5, 0.5]]


# -- the graph ---------------------------------------------------------------------------


def near(graph: Neighbours, device: int) -> list[int]:
    return [int(i) for i in np.flatnonzero(graph.near(device)) if i != device]


def test_neighbours_are_of_ones_own_kind_with_all_that_are_as_near() -> None:
    graph = Neighbours([kind(i % 2) for i in range(8)], "hellinger", k=1)
    assert near(graph, 0) == [2, 4, 6]
    assert near(graph, 3) == [1, 5, 7]


def test_a_rare_kind_is_nobodys_near_neighbour() -> None:
    """Its nearest are all of the others, which have nearer ones."""
    graph = Neighbours([kind(0), kind(0), kind(0), kind(1)], "hellinger", k=2)
    assert near(graph, 3) == []
    assert near(graph, 0) == [1, 2]


def test_two_rare_kinds_are_not_each_others_near_neighbours() -> None:
    """They are 1 apart, as from all others; two devices are 18/30 on average."""
    graph = Neighbours([kind(0)] * 4 + [kind(1), kind(2)], "hellinger", k=3)
    assert near(graph, 4) == near(graph, 5) == []
    assert near(graph, 0) == [1, 2, 3]


def test_a_threshold_makes_neighbours_of_all_within_it() -> None:
    shares = [told([0.5 + d, 0.5 - d]) for d in (0.0, 0.1, 0.3)]
    a, b = hellinger(rows([0.5, 0.5]), rows([0.6, 0.4], [0.8, 0.2]))[0]
    assert a < 0.08 < b
    graph = Neighbours(shares, "hellinger", k=0, threshold=0.08)
    assert (near(graph, 0), near(graph, 2)) == ([1], [])


def test_without_neighbours_nobody_is_near() -> None:
    assert near(Neighbours([kind(0), kind(0)], "hellinger", k=0), 0) == []
    assert len(Neighbours([], "hellinger", k=3)._radii) == 0
    assert near(Neighbours([kind(0)], "hellinger", k=3), 0) == []


def test_blocks_of_rows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    from kellet.server.selection import distances

    rng = np.random.default_rng(0)
    many = [told((h := rng.random(5)) / h.sum()) for _ in range(23)]
    whole = Neighbours(many, "jensen-shannon", k=3)._radii
    monkeypatch.setattr(distances, "_BLOCK", 4)
    assert Neighbours(many, "jensen-shannon", k=3)._radii.tolist() == whole.tolist()


# -- the selection -----------------------------------------------------------------------


def test_each_kind_is_taken_once_before_any_is_taken_twice() -> None:
    devices = fleet(**{f"d{i:02}": kind(i % 3) for i in range(12)})
    for round_ in range(50):
        three = Similar(3, fairness=0).pick(round_, devices, 3)
        assert sorted(int(name[1:]) % 3 for name in three) == [0, 1, 2]
        six = Similar(6, neighbours=3, fairness=0).pick(round_, devices, 6)
        assert sorted(int(name[1:]) % 3 for name in six) == [0, 0, 1, 1, 2, 2]
        assert len(set(six)) == 6


def test_probabilities_by_enumeration() -> None:
    """a and b are alike, c is unlike; two places.

    Whatever comes first, the other place is of the other kind: c is in every round, a and b
    have one half each.
    """
    devices = fleet(a=kind(0), b=kind(0), c=kind(1))
    pick = Similar(2, neighbours=1, fairness=0)
    seen = Counter(frozenset(pick.pick(r, devices, 2)) for r in range(4000))
    assert set(seen) == {frozenset("ac"), frozenset("bc")}
    assert seen[frozenset("ac")] == pytest.approx(2000, abs=4.5 * math.sqrt(1000))


def test_who_told_nothing_is_unlike_any() -> None:
    """d and e told nothing: of {a, b} alike and {d, e} no lot but a with b is left out."""
    devices = fleet(a=kind(0), b=kind(0), d=None, e=None)
    pick = Similar(2, neighbours=1, fairness=0)
    seen = Counter(frozenset(pick.pick(r, devices, 2)) for r in range(6000))
    # First each with 1/4. After a or b: d or e. After d or e: each of the other three.
    mixed, alone = 2 * (1 / 4 * 1 / 2) - 1 / 4 * 1 / 2 + 1 / 4 * 1 / 3, 2 * 1 / 4 * 1 / 3
    assert 4 * mixed + alone == pytest.approx(1)
    expected = {frozenset(p): mixed for p in ("ad", "ae", "bd", "be")} | {frozenset("de"): alone}
    assert set(seen) == set(expected)
    for pair, p in expected.items():
        assert seen[pair] == pytest.approx(6000 * p, abs=4.5 * math.sqrt(6000 * p * (1 - p)))


def test_nobody_waits_longer_than_n_over_the_turns() -> None:
    """17 devices of one kind and 3 of kinds of their own, 4 places."""
    names = [f"d{i:02}" for i in range(20)]
    shares = {name: kind(max(0, i - 16), 4) for i, name in enumerate(names)}
    for fairness, turns in ((0.0, 1), (0.25, 1), (0.5, 2), (1.0, 4)):
        pick, tallies = Similar(4, fairness=fairness), Tallies()
        assert pick.turns(4) == turns
        last = dict.fromkeys(names, 0)
        longest = 0
        for round_ in range(1, 201):
            known = {n: Candidate(n, turn=last[n], told=shares[n]) for n in names}
            taken = pick.pick(round_, Fleet(names, known.__getitem__), 4)
            tallies.note(round_, {"asked": taken, "counted": taken})
            for name in taken:
                longest = max(longest, round_ - last[name])
                last[name] = round_
        assert longest <= math.ceil(20 / turns)
        assert all(201 - at <= math.ceil(20 / turns) for at in last.values())
        if fairness == 1.0:
            assert tallies.fairness(names)["asked_entropy"] == 1.0
        if fairness == 0.0:
            # A kind of one is in nearly every round; one of seventeen in few.
            assert tallies.asked["d19"] > 150
            assert tallies.asked["d03"] < 60


def test_the_default_graph_has_as_many_kinds_as_places() -> None:
    devices = fleet(**{f"d{i}": kind(i // 2, 5) for i in range(10)})
    for round_ in range(30):
        taken = Similar(5, fairness=0).pick(round_, devices, 5)
        assert sorted(int(name[1:]) // 2 for name in taken) == [0, 1, 2, 3, 4]


def test_a_place_that_is_had_twice_never_is() -> None:
    devices = fleet(**{f"d{i}": kind(0) for i in range(7)})
    for places in range(9):
        taken = Similar(7).pick(3, devices, places)
        assert len(set(taken)) == len(taken) == min(places, 7)


# -- questions and answers ---------------------------------------------------------------


def manifest(**changes: object) -> Manifest:
    from support.toy_plans import softmax_regression

    plan = softmax_regression(2, 3)
    fields = {name: getattr(plan.manifest, name) for name in plan.manifest.__struct_fields__}
    return Manifest(**(fields | changes))  # type: ignore[arg-type]


def test_the_question_is_of_the_plans_classes_and_the_columns_given() -> None:
    assert Similar(2).question(manifest()) == Question(classes=3)
    bins = FeatureBins((1,), ((0.0, 1.0),))
    asked = Similar(2, features=bins).question(manifest())
    assert asked.groups == (3, 3)
    with pytest.raises(UsageError, match="columns"):
        Similar(2, features=FeatureBins((2,), ((0.0,),))).question(manifest())
    with pytest.raises(UsageError, match="classes"):
        question_about(manifest(labels=LabelSpec(classes=300)))
    with pytest.raises(UsageError, match="257"):
        question_about(manifest(), FeatureBins((0,), (tuple(map(float, range(253))),)))


def test_edges_by_hand() -> None:
    low_high = manifest(input=InputSpec(shape=(2,), low=0.0, high=8.0))
    assert FeatureBins.fixed(low_high, 4) == FeatureBins((0, 1), ((2.0, 4.0, 6.0),) * 2)
    with pytest.raises(UsageError, match="bounds"):
        FeatureBins.fixed(manifest(), 4)
    x = np.array([[0, 5], [1, 5], [2, 5], [3, 5], [4, 9]], np.float32)
    assert FeatureBins.quantiles(x, 2) == FeatureBins((0, 1), ((2.0,), (5.0,)))
    assert FeatureBins.quantiles(x, 4, [1]) == FeatureBins((1,), ((5.0,),))  # they coincide
    with pytest.raises(DataError):
        FeatureBins.quantiles([1.0, 2.0], 2)
    with pytest.raises(UsageError, match="bins"):
        FeatureBins.quantiles(x, 1)


def test_only_an_answer_to_the_question_is_read() -> None:
    asked = Question(classes=2, columns=(0,), edges=((0.5,),))

    def answer(question: Question, counts: list[int]) -> Histogram:
        return Histogram(question=question.name, shares=to_shares(counts, question.groups))

    whole = answer(asked, [1, 3, 2, 2])
    assert read_histogram(whole, asked) == Told(whole.shares, (2, 2))
    labels = answer(asked.labels, [1, 3])
    assert read_histogram(labels, asked) == Told(labels.shares, (2,))
    other = Question(classes=2, columns=(0,), edges=((0.75,),))
    assert read_histogram(answer(other, [1, 3, 2, 2]), asked) is None
    assert read_histogram(Histogram(question=asked.name, shares=labels.shares), asked) is None
    nothing = Histogram(question=asked.labels.name, shares=bytes(8))  # sums to 0
    assert read_histogram(nothing, asked) is None
    assert read_histogram(None, asked) is read_histogram(whole, None) is None
