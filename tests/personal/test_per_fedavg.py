"""Per-FedAvg, first order, by hand: steps along the gradient of a point ahead."""

from __future__ import annotations

import numpy as np
import pytest
from algorithms.local import rows, run
from support.toy_plans import quadratic, softmax_regression

from kellet.sdk.algorithms import FedAvg, PerFedAvg, from_wire
from kellet.sdk.errors import UsageError
from kellet.sdk.personal import FineTune
from kellet.sdk.trainer import batches
from kellet.server import FleetConfig


def test_two_steps_by_hand() -> None:
    """loss (y - 1)^2, alpha 1/4, beta 1/2: g(0) = -2, ahead at 1/2, g = -1, y = 1/2; then 3/4."""
    algorithm = PerFedAvg(alpha=0.25, local_lr=0.5, batch_size=0, local_steps=2)
    outcome = run(quadratic(), algorithm, [0.0], rows([2.0, 1.0]))
    assert outcome.delta_y[:].tolist() == [0.75]
    assert outcome.rate_sum == 1.0
    assert outcome.loss == (1 + 0.25) / 2  # at 0 and 1/2
    assert outcome.objective == (0.25 + 0.0625) / 2  # at 1/2 and 3/4, the points ahead


def test_the_gradient_ahead_is_of_the_next_batch() -> None:
    """One step from 0 with rows b = 1 and 3, in the order of the draw: beta (b' - alpha b)."""
    order = batches(2, 1, seed=0, device="a", round_=1)
    first, second = (float([1, 3][next(order)[0]]) for _ in range(2))
    algorithm = PerFedAvg(alpha=0.25, local_lr=0.5, batch_size=1, local_steps=1)
    outcome = run(quadratic(), algorithm, [0.0], rows([1.0, 1.0], [1.0, 3.0]))
    assert outcome.delta_y[:].tolist() == [0.5 * (second - 0.25 * first)]


@pytest.mark.parametrize(("samples", "steps"), [(64, 1), (65, 2), (32, 1), (1, 1), (320, 5)])
def test_an_epoch_takes_two_batches_a_step(samples: int, steps: int) -> None:
    assert PerFedAvg(batch_size=32).planned_steps(samples) == steps
    assert PerFedAvg(batch_size=32, local_steps=7).planned_steps(samples) == 7


def test_other_algorithms_look_at_y() -> None:
    """Without a look ahead no bit is another: the loop draws one batch a step."""
    outcome = run(
        quadratic(), FedAvg(local_lr=0.5, batch_size=0, local_steps=1), [0.0], rows([2.0, 1.0])
    )
    assert outcome.delta_y[:].tolist() == [1.0]
    assert outcome.objective == outcome.loss == 1.0


def test_clipping_is_of_the_gradient_ahead_alone() -> None:
    """g(0) = -2 is beyond the clip of 1/2 and taken whole; g at 1/2 is -1, clipped to -1/2."""
    algorithm = PerFedAvg(alpha=0.25, local_lr=0.5, batch_size=0, local_steps=1, clip=0.5)
    outcome = run(quadratic(), algorithm, [0.0], rows([2.0, 1.0]))
    assert outcome.delta_y[:].tolist() == [0.25]


def test_it_matches_numpy_on_two_classes() -> None:
    plan = softmax_regression(2, 2)
    data = rows([1.0, -1.0], [0.5, 2.0], [-1.0, 0.25], [2.0, 1.0])
    algorithm = PerFedAvg(alpha=0.1, local_lr=0.2, batch_size=2, local_steps=3)
    outcome = run(plan, algorithm, np.zeros(plan.n_params), data)
    session = plan.session()
    y = np.zeros(plan.n_params, np.float32)
    order = batches(4, 2, seed=0, device="a", round_=1)

    def gradient(at: np.ndarray, index: np.ndarray) -> np.ndarray:
        session.params[:] = at
        session.step(data[0][index], data[1][index])
        return session.grads.copy()

    for _ in range(3):
        ahead = y - np.float32(0.1) * gradient(y, next(order))
        y = y - np.float32(0.2) * gradient(ahead, next(order))
    assert np.array_equal(outcome.delta_y[:], y)


def test_a_personal_model_is_one_step_at_alpha() -> None:
    recipe = FineTune(steps=1).recipe(PerFedAvg(alpha=0.125, local_lr=0.5))
    assert (recipe.local_lr, recipe.local_steps, recipe.lookahead) == (0.125, 1, 0)


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="alpha"):
        PerFedAvg(alpha=0)
    with pytest.raises(UsageError, match="no device could train"):
        FleetConfig(algorithm=PerFedAvg(), schemes=("w8.row",))
    assert from_wire(PerFedAvg(alpha=0.5).wire()) == PerFedAvg(alpha=0.5)
