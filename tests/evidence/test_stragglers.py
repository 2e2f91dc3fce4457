"""Stragglers, in short: who is late, for how long, and that partial work helps."""

import pickle

import pytest

from bench.evidence.stragglers import EXPERIMENT, Cell, Stragglers

DEVICES = [f"device-{k:02}" for k in range(30)]


@pytest.mark.parametrize(("share", "late"), [(0.0, 0), (0.5, 5), (0.9, 9)])
def test_so_many_of_ten_are_late(share, late):
    counted = Stragglers(seed=0, share=share, dropped=False, epochs=20)
    dropped = Stragglers(seed=0, share=share, dropped=True, epochs=20)
    for round_ in range(1, 20):
        asked = counted.cohort(round_, DEVICES)
        assert len(set(asked)) == 10
        assert dropped.cohort(round_, DEVICES) == asked
        steps = [counted.manages(round_, name, 40) for name in asked]
        assert sum(n < 40 for n in steps) == late
        assert all(n in range(2, 41, 2) for n in steps)  # whole epochs of two steps, one at least
        kept = [dropped.manages(round_, name, 40) for name in asked]
        assert kept == [n if n == 40 else 0 for n in steps]


def test_every_lateness_comes_up_evenly():
    stragglers = Stragglers(seed=0, share=0.9, dropped=False, epochs=20)
    epochs = [
        stragglers.manages(round_, name, 20)
        for round_ in range(1, 101)
        for name in stragglers.cohort(round_, DEVICES)[:9]
    ]
    assert set(epochs) == set(range(1, 20))
    assert sum(epochs) / len(epochs) == pytest.approx(10, abs=0.4)


def test_other_processes_draw_the_same():
    stragglers = Stragglers(seed=1, share=0.9, dropped=False, epochs=20)
    copy = pickle.loads(pickle.dumps(stragglers))
    assert copy.cohort(3, DEVICES) == stragglers.cohort(3, DEVICES[::-1])


def test_partial_work_is_worth_counting():
    """Measured after six rounds with 90 % of stragglers: see the margins."""
    counted, dropped = (
        EXPERIMENT.work(Cell(share=0.9, dropped=dropped, rounds=6)) for dropped in (False, True)
    )
    assert (counted["counted"], dropped["counted"]) == (10, 1)
    assert max(counted["accuracies"]) > max(dropped["accuracies"]) + 0.2
