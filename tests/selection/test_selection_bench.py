"""The table of what a selection does, by hand."""

from __future__ import annotations

import pytest

from bench.selection import labels_in_a_round, rows, table
from kellet.server.selection import Similar, Uniform


def test_measures_by_hand() -> None:
    accuracy = {0: [0.1, 0.2, 0.3, 0.5, 0.2, 0.6], 1: [0.3, 0.2, 0.3, 0.3, 0.3, 0.3]}
    kept = [
        {
            "settings": {"algorithm": "fedavg", "selection": "uniform", "seed": seed},
            "round": number,
            "accuracy": value,
            "client_worst": value / 2,
            "evenness": number / 10,
        }
        for seed, values in accuracy.items()
        for number, value in reversed(list(enumerate(values, 1)))
    ]
    (row,) = rows(kept)
    assert row["runs"] == 2
    assert row["first"] == pytest.approx((0.15 + 0.25) / 2)
    assert row["second"] == pytest.approx((1.3 / 3 + 0.3) / 2)
    assert row["lowest"] == pytest.approx((0.2 + 0.3) / 2)
    assert row["jump"] == pytest.approx(((0.2 + 0.3 + 0.4) / 3 + 0) / 2)
    assert row["worst"] == pytest.approx((1.3 / 3 + 0.3) / 4)
    assert row["evenness"] == pytest.approx(0.6)
    assert table([row]).splitlines()[2].startswith("| fedavg | uniform | 2 | 0.200 | 0.367 |")


def test_noise_takes_away_what_the_histograms_give() -> None:
    exact = labels_in_a_round(Similar(6), None, repeats=1)
    some = labels_in_a_round(Similar(6), 0.1, repeats=1)
    drowned = labels_in_a_round(Similar(6), 0.01, repeats=1)
    uniform = labels_in_a_round(Uniform(6), None, repeats=1)
    assert exact == 6.0
    assert 5.8 > some > 4.8 > drowned
    assert uniform == pytest.approx(6 * (1 - 593775 / 1947792), abs=0.25)  # C(30, 6), C(36, 6)
