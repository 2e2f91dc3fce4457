"""Personal models on people's phones: the short run within margins, and what the page says."""

from __future__ import annotations

import pytest

from bench.evidence.experiment import Results
from bench.evidence.personal import EXPERIMENT, WAYS, by_person, cells, people
from kellet.server.metrics import worst_decile


@pytest.fixture(scope="module")
def short():
    return Results("", "", 0.0, {cell: EXPERIMENT.work(cell) for cell in cells(False)})


def test_dittos_models_are_better_for_those_who_are_worst_off(short):
    """Measured after 10 rounds: .359 shared, .531 Ditto's; the means .699 and .811."""
    found = short.one(personal="ditto:0.1")
    assert found["personal_worst"] > found["global_worst"] + 0.05
    assert found["personal_mean"] > found["global_mean"] + 0.03
    assert len(found["personal"]) == 36


def test_a_model_of_ones_own_leaves_the_fleets_alone(short):
    shared = [found["global"] for found in short.found.values()]
    assert shared[0] == shared[1]
    assert "each person's data alone" in EXPERIMENT.page(short)


def test_the_worst_decile_is_of_four_people():
    found = [{"personal": [0.9] * 32 + [0.1, 0.2, 0.3, 0.4]}, {"personal": [0.9] * 32 + [0.5] * 4}]
    assert worst_decile(by_person(found, "personal")) == pytest.approx(0.375, rel=1e-12)


def test_the_full_form():
    assert len(cells(True)) == 3 * len(WAYS)
    assert len({str(cell) for cell in cells(True)}) == 3 * len(WAYS)
    assert people(1).keys().isdisjoint(people(2))
