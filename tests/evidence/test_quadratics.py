"""Two quadratics: the product's SCAFFOLD goes to the optimum, FedAvg to where theory says."""

from __future__ import annotations

import pytest

from bench.evidence.quadratics import DISSIMILARITIES, EXPERIMENT, Cell, clients_of, exact


def test_clients_are_the_two_quadratics():
    """Gradients at w = 2, by hand: 1.5 * 2 + 10 and .5 * 2 - 10."""
    for (x, y), gradient in zip(clients_of(10.0).values(), (13.0, -9.0), strict=True):
        assert float((x * (x * 2 - y)).mean()) == gradient


@pytest.mark.parametrize("g", DISSIMILARITIES)
def test_fedavg_stops_at_the_fixed_point(g):
    """Summed by hand: w (2 - r1 - r2) = G ((1 - r2) / .5 - (1 - r1) / 1.5), r = (1 - .1 a)^10."""
    r1, r2 = 0.85**10, 0.95**10
    fixed = g * ((1 - r2) / 0.5 - (1 - r1) / 1.5) / (2 - r1 - r2)
    assert fixed == pytest.approx(0.2218 * g, rel=1e-3)
    assert exact(Cell(way="fedavg/f64", dissimilarity=g))[-1] == pytest.approx(fixed, rel=1e-12)


@pytest.mark.parametrize("g", DISSIMILARITIES)
def test_scaffold_in_float64_comes_below_the_reference(g):
    assert exact(Cell(way="scaffold/f64", dissimilarity=g))[-1] < 4e-15


@pytest.mark.parametrize("g", DISSIMILARITIES)
def test_through_the_product(g):
    """Measured: 3e-8 G, from the float32 gradients alone; FedAvg's is float64's to rounding."""
    fedavg = EXPERIMENT.work(Cell(way="fedavg", dissimilarity=g, rounds=40))
    by_hand = exact(Cell(way="fedavg/f64", dissimilarity=g))
    assert fedavg["error"] == pytest.approx(by_hand[-1], rel=1e-6)
    scaffold = EXPERIMENT.work(Cell(way="scaffold", dissimilarity=g, rounds=40))
    assert scaffold["error"] < 1e-7 * g
    # Until rounding is what is left, the product follows the float64 run.
    by_hand = exact(Cell(way="scaffold/f64", dissimilarity=g))
    assert scaffold["curve"][:10] == pytest.approx(by_hand[:10], rel=0.006, abs=1e-6 * g)


def test_only_rounded_gradients_limit_it():
    found = {
        way: exact(Cell(way=f"scaffold/{way}", dissimilarity=10.0))[-1]
        for way in ("f64", "g32", "d32", "y32")
    }
    assert 1e-8 < found["g32"] < 1e-6
    assert max(found["f64"], found["d32"], found["y32"]) < 1e-14


def test_sgd_is_a_step_of_the_mean_a_round():
    """The mean of the curvatures is 1: w shrinks by .9 a round."""
    found = EXPERIMENT.work(Cell(way="sgd", dissimilarity=1.0, rounds=5))
    assert found["error"] == pytest.approx(0.9**5, rel=1e-5)
