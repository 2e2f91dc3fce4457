"""Momentum at 2 % participation: the short run within margins, and what the page says."""

from __future__ import annotations

import pytest

from bench.evidence.experiment import Results
from bench.evidence.momentum import EXPERIMENT, FLEETS, WAYS, algorithm, cells, work
from kellet.sdk.algorithms import ScaffoldM


@pytest.fixture(scope="module")
def short():
    return Results("", "", 0.0, {cell: work(cell) for cell in cells(False)})


def test_local_momentum_fails_where_controls_are_old_and_the_servers_does_not(short):
    """Measured after 60 rounds: SCAFFOLD .466, with local momentum .289, SCAFFOLD-M .571."""
    tails = {cell.way: found["tail"] for cell, found in short.found.items()}
    assert tails["scaffold+local"] < tails["scaffold"] - 0.1
    assert tails["scaffold_m"] > tails["scaffold"] - 0.05
    assert "| SCAFFOLD-M" in EXPERIMENT.page(short)


def test_ways_differ_in_what_they_say_alone():
    made = {cell.way: algorithm(cell) for cell in cells(True)}
    assert {a.planned_steps(600) for a in made.values()} == {20}
    assert {a.weighting for a in made.values()} == {"uniform"}
    assert made["scaffold+local"].momentum == pytest.approx(0.9)
    assert isinstance(made["scaffold_m"], ScaffoldM)
    assert made["scaffold_m"].momentum == 0


def found(cell):
    """.8, a point more for each seed, and .07 more with SCAFFOLD-M at the rate .2."""
    tail = 0.8 + cell.seed / 100 + 0.07 * (cell.way == "scaffold_m" and cell.local_lr == 0.2)
    return {"tail": tail, "best": 0.9, "last": 0.8, "stopped": "", "curve": [0.5, tail]}


def test_the_page_takes_the_best_rate_and_counts_the_seeds(tmp_path):
    results = Results("command", "here", 60.0, {cell: found(cell) for cell in cells(True)})
    page = " ".join(EXPERIMENT.page(results).split())
    assert "| SCAFFOLD-M, beta .5 | 0.870 (0.2), best 0.900 |" in page
    assert "| 0.873 / 0.868 |" in page
    assert "SCAFFOLD-M, beta .5 in 3 of 3 seeds" in page
    assert "SCAFFOLD-M, beta .5 0.870, 0.880, 0.890" in page
    assert "adds to SCAFFOLD: +7.0 (10 %), +7.0 (2 %), +7.0 (2 %, falling)." in page
    EXPERIMENT.figure(results, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().startswith("<?xml")


def test_the_page_can_be_of_a_part(tmp_path):
    part = [c for c in cells(True) if c.fleet == "2 %, falling" and c.way != "feddyn"]
    results = Results("command", "here", 60.0, {cell: found(cell) for cell in part}, missing=2)
    page = " ".join(EXPERIMENT.page(results).split())
    assert "| FedDyn, alpha .1 | - | - | - |" in page
    assert "not measured (10 %)" in page
    EXPERIMENT.figure(results, tmp_path / "figure.svg")


def test_each_way_is_run_in_each_fleet():
    assert {(c.way, c.fleet) for c in cells(True)} == {(w, f) for w in WAYS for f in FLEETS}
