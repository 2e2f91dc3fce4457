"""Personal models in plain NumPy, on gradients of the plan's own session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.holdout import split_holdout
from kellet.sdk.plan import Plan
from kellet.sdk.trainer import Data, batches

__all__ = ["ditto", "fine_tuned"]

F32 = NDArray[np.float32]


def ditto(
    plan: Plan,
    received: Sequence[F32],
    data: tuple[Any, Any],
    *,
    lam: float,
    lr: float,
    batch: int,
    steps: int,
    device: str,
    seed: int,
    holdout: float = 0.0,
) -> F32:
    """v after a round for each model of ``received``: v -= lr*(grad f(v) + lam*(v - x))."""
    samples, _ = split_holdout(Data(*plan.check_data(*data)), holdout, device)
    session = plan.session()
    v = received[0].copy()
    for round_, x in enumerate(received, 1):
        order = batches(len(samples), batch, seed=seed, device=f"{device}/personal", round_=round_)
        for _, index in zip(range(steps), order, strict=False):
            session.params[:] = v
            session.step(samples.x[index], samples.y[index])
            pull = np.float32(lam) * (v - x)
            v = v - np.float32(lr) * (session.grads + pull)
    return v


def fine_tuned(plan: Plan, received: Sequence[F32], data: tuple[Any, Any], **options: Any) -> F32:
    """The last received model after its steps: Ditto's without a leash, of one round."""
    last = len(received)
    samples, _ = split_holdout(
        Data(*plan.check_data(*data)), options.get("holdout", 0.0), options["device"]
    )
    session = plan.session()
    v = received[-1].copy()
    order = batches(
        len(samples),
        options["batch"],
        seed=options["seed"],
        device=f"{options['device']}/personal",
        round_=last,
    )
    for _, index in zip(range(options["steps"]), order, strict=False):
        session.params[:] = v
        session.step(samples.x[index], samples.y[index])
        v = v - np.float32(options["lr"]) * session.grads
    return v
