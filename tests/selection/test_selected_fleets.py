"""Whole fleets under each selection: nothing of SCAFFOLD's books depends on who is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines.network import Fleet, Weather
from support.toy_plans import quadratic, softmax_regression

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import UsageError
from kellet.sdk.releases import Sharing
from kellet.server import simulate
from kellet.server.history import History
from kellet.server.selection import Available, FeatureBins, Similar, Uniform, Weighted

PLAN = softmax_regression(2, 3)
SIX = [f"c{i}" for i in range(6)]
SELECTIONS = [
    Uniform(3),
    Uniform(3, window=1.0),
    Weighted(3),
    Weighted(3, window=1.0),
    Available(3),
    Similar(3),
    Similar(3, window=1.0, distance="jensen-shannon"),
    Similar(3, features=FeatureBins((0, 1), ((0.0,), (-0.5, 0.5)))),
]


def clients() -> dict[str, Any]:
    """Six, of which two each have mostly one label, and 4, 6, 8, ... samples."""
    rng = np.random.default_rng(1)
    data = {}
    for i, name in enumerate(SIX):
        y = np.array([i % 3] * (3 + 2 * i) + [0])
        data[name] = (rng.normal(size=(len(y), 2)).astype(np.float32) + y[:, None], y)
    return data


def run(selection: Any, algorithm: Any = None, **more: Any) -> History:
    algorithm = algorithm or Scaffold(local_steps=3, local_lr=0.1, batch_size=4)
    return simulate(PLAN, clients(), algorithm, rounds=8, cohort=selection, check="event", **more)


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_the_gap_is_zero_and_the_seed_decides(selection: Any) -> None:
    history = run(selection)
    assert history.control_gap == 0
    assert [len(set(r.asked)) for r in history.rounds] == [3] * 8
    assert all(sorted(r.counted) == sorted(r.asked) for r in history.rounds)
    assert history.rounds[-1].asked_entropy == history.rounds[-1].counted_entropy
    assert run(selection).digest == history.digest


def test_a_number_is_uniform_and_a_selection_of_too_many_is_refused() -> None:
    assert run(3, seed=4).digest == run(Uniform(3, seed=4), seed=4).digest
    with pytest.raises(UsageError, match="cohort = 7"):
        run(Similar(7))


def kinds(history: History) -> list[list[int]]:
    return [sorted(int(name[1]) % 3 for name in r.asked) for r in history.rounds]


def test_histograms_travel_in_messages_and_each_kind_is_asked() -> None:
    history = run(Similar(3))
    assert kinds(history)[1:] == [[0, 1, 2]] * 7  # the first round asks before it knows
    untold = run(Similar(3), sharing=Sharing())
    assert kinds(untold)[1:] != [[0, 1, 2]] * 7
    # What was told is in the bytes: 12 of shares and 8 of the question, and the words.
    extra = history.rounds[-1].uplink_bytes - untold.rounds[-1].uplink_bytes
    assert extra > 6 * 20


def test_noise_is_part_of_the_seed() -> None:
    noisy = Sharing("labels", 0.2)
    one, same = run(Similar(3), sharing=noisy), run(Similar(3), sharing=noisy)
    assert one.digest == same.digest
    assert [r.asked for r in one.rounds] != [r.asked for r in run(Similar(3)).rounds]


def test_who_is_left_out_of_the_mapping_shares_nothing() -> None:
    told = {name: Sharing("labels") for name in SIX[:5]}
    history = run(Similar(3, fairness=0), sharing=told)
    # c5 is of kind 2 and nobody's near neighbour: some rounds have c2 and c5.
    assert any({"c2", "c5"} <= set(r.asked) for r in history.rounds[1:])
    assert history.control_gap == 0


def test_a_fleet_of_one_kind_is_as_fair_as_a_draw() -> None:
    one = {name: (np.ones((4, 2), np.float32), np.zeros(4, int)) for name in SIX}
    history = simulate(PLAN, one, FedAvg(), rounds=40, cohort=Similar(2))
    assert (history.rounds[-1].asked_entropy or 0) > 0.97


def test_a_fleet_whose_devices_are_drawn_lives_through_bad_weather(tmp_path: Any) -> None:
    data = {f"d{i}": np.array([[1.0, i]]) for i in range(5)}
    weather = Weather(lost=0.1, twice=0.1, slowest=0.4, stale=2.0)
    fleet = Fleet(
        tmp_path,
        quadratic(),
        data,
        Scaffold(),
        rounds=6,
        quorum=1,
        weather=weather,
        selection=Available(2, window=2.0),
    )
    fleet.start().run()
    fleet.check_end()
    summaries = [r.summary for r in fleet.server.ledger.rounds() if r.state == "closed"]
    assert len(summaries) == 6
    assert summaries[-1]["asked_entropy"] > 0.9
