"""The local steps of a personal model, in the session that has just trained the fleet's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, Work
from kellet.sdk.heap import parts
from kellet.sdk.local import FloatSession, TrainingFailed
from kellet.sdk.trainer import Data, batches

__all__ = ["Steps", "draws", "train_personal"]

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Steps:
    """What was run: how many steps, their mean loss, and why they ended early."""

    steps: int
    loss: float
    stopped: str = ""


def draws(device: str) -> str:
    """The name by which a device's personal batches are drawn: apart from its others'."""
    return f"{device}/personal"  # no device is called so


def train_personal(
    session: FloatSession,
    recipe: FedAvg,
    data: Data,
    *,
    x: F32,
    spans: Sequence[slice],
    seed: int,
    device: str,
    round_: int,
    stop: Callable[[], str] = lambda: "",
) -> Steps:
    """Train v, which is ``session.params``, in place around ``x`` float32 [n_update].

    ``recipe``: the steps, as an algorithm without controls. ``spans``: the parts of v that
    they move. ``stop`` is asked before each step for a reason to end. No vector is made.
    Raises ``TrainingFailed`` where v, which is then of no use, has become infinite or NaN.
    """
    step = _stepper(session, recipe, x, spans)
    planned = recipe.planned_steps(len(data))
    order = batches(
        len(data), recipe.batch(len(data)), seed=seed, device=draws(device), round_=round_
    )
    loss_sum, steps, stopped = 0.0, 0, ""
    while steps < planned:
        stopped = stop()
        if stopped:
            break
        index = next(order)
        loss = session.step(data.x[index], data.y[index])
        if not np.isfinite(loss):
            raise TrainingFailed(f"the personal model's loss became {loss} at step {steps}")
        step(recipe.rate(steps))
        loss_sum += loss
        steps += 1
    if not all(np.isfinite(session.params[part]).all() for part in parts(len(x))):
        raise TrainingFailed("the personal model became infinite or NaN")
    return Steps(steps, loss_sum / max(1, steps), stopped)


def _stepper(
    session: FloatSession, recipe: FedAvg, x: F32, spans: Sequence[slice]
) -> Callable[[float], None]:
    """The recipe's step on all of the spans; the gradient is clipped over them together."""
    clip = recipe.clip if len(spans) > 1 else 0.0
    if clip:
        recipe = replace(recipe, clip=0.0)
    steps = [
        recipe.stepper(Work(session.params[part], session.grads[part], x[part])) for part in spans
    ]
    if len(steps) == 1:
        return steps[0]
    gradients = [session.grads[part] for part in spans]

    def step(rate: float) -> None:
        if clip:
            kernels.clip_norm(gradients, clip)
        for each in steps:
            each(rate)

    return step
