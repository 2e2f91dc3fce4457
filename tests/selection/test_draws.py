"""Draws without a look at data: their laws by enumeration, and worked by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from kellet.sdk.errors import UsageError
from kellet.server.selection import (
    SELECTIONS,
    Available,
    Candidate,
    Draw,
    FirstCome,
    Fleet,
    Schedule,
    Uniform,
    Weighted,
    entropy,
    make,
)
from kellet.server.selection import values as drawing
from kellet.server.selection.tallies import Tallies


def fleet(**facts: Mapping[str, Any]) -> Fleet:
    known = {name: Candidate(name, **of) for name, of in facts.items()}
    return Fleet(sorted(known), known.__getitem__)


def plain(names: str) -> Fleet:
    return fleet(**{name: {} for name in names})


def with_lots(monkeypatch: pytest.MonkeyPatch, **u: float) -> None:
    """Let the lot of a device be the fraction ``u``."""
    lots = {name: round(x * 2**64).to_bytes(8, "big") + bytes(24) for name, x in u.items()}
    monkeypatch.setattr(drawing, "lot", lambda _seed, _round, device: lots[device])


def law(pick: Draw, devices: Fleet, rounds: int = 20_000) -> Counter[tuple[str, ...]]:
    return Counter(tuple(pick.pick(r, devices, pick.size)) for r in range(rounds))


def hold(seen: Counter[Any], expected: Mapping[Any, float]) -> None:
    """Each frequency within 4.5 standard deviations of its probability, and no other outcome."""
    n = sum(seen.values())
    assert set(seen) <= set(expected)
    for outcome, p in expected.items():
        assert seen[outcome] == pytest.approx(n * p, abs=4.5 * math.sqrt(n * p * (1 - p)) + 1e-9)


# -- uniform -----------------------------------------------------------------------------


def test_the_smallest_lots_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with_lots(monkeypatch, a=0.9, b=0.25, c=0.5, d=0.75)
    assert Uniform(2).pick(1, plain("abcd"), 2) == ["b", "c"]


def test_each_ordered_pair_has_the_same_probability() -> None:
    hold(law(Uniform(2), plain("abcd")), dict.fromkeys(itertools.permutations("abcd", 2), 1 / 12))


def test_a_lot_is_the_same_everywhere() -> None:
    """The first bytes of SHA-256("3/7/pi-1"): a restarted aggregator chooses as it did."""
    assert drawing.lot(3, 7, "pi-1").hex()[:16] == "16b031e0fca8e1ea"
    assert Uniform(2, seed=3).choose(1, plain("abcdef")) == {"c", "f"}


def test_seed_and_round_decide() -> None:
    devices = plain("abcdefgh")
    choices = {Uniform(3, seed).choose(r, devices) for seed in range(4) for r in range(4)}
    assert len(choices) > 10
    assert Uniform(3, 1).choose(2, devices) == Uniform(3, 1).choose(2, devices)


# -- weighted ----------------------------------------------------------------------------


def test_keys_are_minus_log_u_over_n(monkeypatch: pytest.MonkeyPatch) -> None:
    with_lots(monkeypatch, a=0.5, b=0.5, c=0.25)
    devices = fleet(a={"samples": 1}, b={"samples": 3}, c={"samples": 4})
    # ln 2 / 1 = .69, ln 2 / 3 = .23, ln 4 / 4 = .35.
    assert Weighted(3).pick(1, devices, 3) == ["b", "c", "a"]


def test_who_was_never_counted_has_the_mean_of_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with_lots(monkeypatch, a=0.5, b=0.5, c=0.5)
    devices = fleet(a={"samples": 1}, b={}, c={"samples": 5})  # b: 3
    assert Weighted(3).pick(1, devices, 3) == ["c", "b", "a"]


def test_the_law_is_successive_sampling_by_enumeration() -> None:
    n = {"a": 1, "b": 2, "c": 5}
    expected = {
        (first, second): n[first] / 8 * n[second] / (8 - n[first])
        for first, second in itertools.permutations(n, 2)
    }
    assert sum(expected.values()) == pytest.approx(1)
    devices = fleet(**{name: {"samples": k} for name, k in n.items()})
    hold(law(Weighted(2), devices), expected)


def test_without_any_known_it_is_uniform() -> None:
    pairs = dict.fromkeys(itertools.permutations("abc", 2), 1 / 6)
    hold(law(Weighted(2), plain("abc")), pairs)


# -- available ---------------------------------------------------------------------------


def test_who_has_waited_longest_comes_first_and_lots_decide_among_equals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_lots(monkeypatch, a=0.1, b=0.2, c=0.3, d=0.05)
    devices = fleet(a={"turn": 4}, b={"turn": 2}, c={}, d={"turn": 4})
    assert Available(4).pick(5, devices, 4) == ["c", "b", "d", "a"]
    less = fleet(a={"turn": 4, "asked": 2}, b={"turn": 4, "asked": 1}, d={"turn": 4, "asked": 3})
    assert Available(3).pick(5, less, 3) == ["b", "a", "d"]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_of_those_that_are_always_willing_none_is_asked_twice_more_than_another(size: int) -> None:
    names, tallies = "abcdefg", Tallies()
    for round_ in range(1, 40):
        known = {
            n: Candidate(n, turn=tallies.turn.get(n, 0), asked=tallies.asked[n]) for n in names
        }
        picked = Available(size).pick(round_, Fleet(names, known.__getitem__), size)
        tallies.note(round_, {"asked": picked, "counted": picked})
        times = [tallies.asked[name] for name in names]
        assert max(times) - min(times) <= 1


# -- all of them -------------------------------------------------------------------------


def test_with_a_window_nobody_is_chosen_beforehand() -> None:
    assert Uniform(2, window=1.0).choose(1, plain("abc")) is None
    assert Available(2).choose(1, plain("abc")) is None
    assert len(Available(2, window=0).choose(1, plain("abc")) or ()) == 2
    assert FirstCome().choose(1, plain("abc")) is None


def test_a_schedule_names_enrolled_devices() -> None:
    schedule = Schedule(lambda round_, names: [*names[:round_], "stranger"])
    assert schedule.choose(2, plain("abc")) == {"a", "b"}


@pytest.mark.parametrize("name", SELECTIONS)
def test_fewer_candidates_than_places_are_all_drawn(name: str) -> None:
    selection = make(name, 5)
    assert isinstance(selection, Draw)
    assert sorted(selection.pick(1, plain("abc"), 5)) == ["a", "b", "c"]
    assert selection.pick(1, plain(""), 5) == []
    assert selection.pick(1, plain("abc"), 0) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": 2, "enough": 3},
        {"size": 2, "window": -1.0},
        {"size": 2, "window": math.nan},
        {"size": 2, "distance": "euclid"},
        {"size": 2, "fairness": 1.5},
        {"size": 2, "threshold": 1.0},
        {"size": 2, "neighbours": -1},
        {"size": 2, "neighbours": 2, "threshold": 0.5},
        {"size": 2, "colour": "red"},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=list(wrong)[-1] if len(wrong) < 3 else "neighbours"):
        make("similar", **wrong)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="similar"):
        make("best", 3)


# -- fairness ----------------------------------------------------------------------------


def test_entropy_by_hand() -> None:
    assert entropy([1, 1, 1, 1]) == 1.0
    assert entropy([1, 1, 0, 0]) == pytest.approx(0.5)  # ln 2 / ln 4
    # p = 3/4, 1/4: (0.75 ln(4/3) + 0.25 ln 4) / ln 2.
    assert entropy([3, 1]) == pytest.approx(0.8112781244591328)
    assert entropy([0, 0]) is None
    assert entropy([7]) is None
    assert entropy([]) is None


def test_tallies_are_the_same_in_any_order() -> None:
    rounds = [
        (1, {"asked": ["a", "b"], "counted": ["a"], "missed": ["c"]}),
        (2, {"asked": ["a"], "counted": ["a", "a"]}),  # counted late, too
    ]
    one, other = Tallies(), Tallies()
    for number, summary in rounds:
        one.note(number, summary)
    for number, summary in reversed(rounds):
        other.note(number, summary)
    assert vars(one) == vars(other)
    assert one.turn == {"a": 2, "b": 1, "c": 1}
    assert one.asked == {"a": 2, "b": 1}
    assert one.counted == {"a": 2}
    told = one.fairness(["a", "b"])
    # Asked 2 and 1 times: (2/3 ln(3/2) + 1/3 ln 3) / ln 2.
    assert told["asked_entropy"] == pytest.approx(0.9182958340544896)
    assert told["counted_entropy"] == 0.0
