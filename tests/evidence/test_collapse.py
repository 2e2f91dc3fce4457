"""No algorithm falls apart at 100 clients with ten asked: the short run within margins."""

from __future__ import annotations

import msgspec
import pytest

from bench.evidence.collapse import EXPERIMENT, MARGIN, SPAN, WAYS, cells, fall, work
from bench.evidence.experiment import Results


@pytest.fixture(scope="module")
def short():
    return Results("", "", 0.0, {cell: work(cell) for cell in cells(False)})


def test_none_falls(short):
    """Measured: .006 at most, and .81 to .88 after 40 rounds."""
    for cell, found in short.found.items():
        assert found["fall"] <= MARGIN, cell
        assert found["tail"] > 0.75, cell
    assert EXPERIMENT.page(short).count("steady") == len(short.found)


def test_a_fall_is_of_means_and_from_the_highest():
    """Ten rounds at .5, ten at .8, ten at .6: the mean falls from .8 to .6."""
    assert fall([0.5] * SPAN + [0.8] * SPAN + [0.6] * SPAN) == pytest.approx(0.2)
    assert fall([0.1 * i for i in range(30)]) == 0
    one = [0.8] * SPAN + [0.0] + [0.8] * SPAN
    assert fall(one) == pytest.approx(0.08)  # one round in ten


def test_a_server_rate_that_is_too_high_falls():
    """Measured: .062, so that the measure can see one."""
    (like,) = [cell for cell in cells(True) if cell.way == "avgm"]
    wild = msgspec.structs.replace(like, local_lr=1.0, server_lr=3.0, rounds=40)
    found = work(wild)
    assert found["fall"] > 2 * MARGIN
    page = EXPERIMENT.page(Results("", "", 0.0, dict.fromkeys(cells(False), found)))
    assert "steady" not in page


def test_every_way_is_run_in_full():
    assert [cell.way for cell in cells(True)] == list(WAYS)


def test_the_page_and_the_figure(tmp_path):
    level, low = [0.8] * 150, [0.8] * 75 + [0.7] * 75
    found = {"fall": 0.01, "tail": 0.8, "best": 0.9, "rounds": 150, "stopped": "", "curve": level}
    runs = dict.fromkeys(cells(True), found)
    first, second, third, *_ = runs
    runs[first] = {**found, "fall": 0.3}
    runs[second] = {**found, "rounds": 20, "stopped": "infinite"}
    runs[third] = {**found, "fall": 0.1, "curve": low}
    results = Results("command", "here", 60.0, runs)
    page = EXPERIMENT.page(results)
    assert f"{len(WAYS) - 3} of {len(WAYS)} are steady, 1 dip, 2 collapse." in page
    assert "ended: infinite" in page
    EXPERIMENT.figure(results, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")
