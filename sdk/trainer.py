"""The local loop: one device's part of a round, under a budget."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, Scaffold, Work

__all__ = ["Data", "Holdout", "Outcome", "Session", "TrainingFailed", "batches", "train"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class TrainingFailed(Exception):
    """The round's training gave nothing that may be sent; the text says why."""


class Session(Protocol):
    """What training needs of a plan: ``kellet.sdk.plan.GradientSession``."""

    params: F32
    grads: F32

    def step(self, x: F32, y: I64) -> float: ...


@dataclass(frozen=True, slots=True)
class Data:
    """A device's own samples: ``x`` float32 [n, *input], ``y`` int64 [n]."""

    x: F32
    y: I64

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, slots=True)
class Holdout:
    """The received model on a device's own ``samples`` held-out samples."""

    samples: int
    loss: float
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a device's round came to.

    ``delta_y`` float32 [n_update]; ``delta_c`` int64 [n_train] on the grid, as it will be
    counted; ``delta_c_sent`` float32 [n_train] where it travels. ``loss`` is the mean
    data loss over the steps, ``objective`` adds the proximal term, ``drift`` is
    ||y - x|| over the trained parameters. ``kept`` float32: what stays on the device,
    where the plan keeps something there.
    """

    delta_y: F32
    delta_c: I64 | None
    delta_c_sent: F32 | None
    steps: int
    rate_sum: float
    samples: int
    loss: float
    objective: float
    drift: float
    kept: F32 | None = None


def batches(
    samples: int, batch: int, *, seed: int, device: str, round_: int
) -> Iterator[NDArray[np.int64]]:
    """Indices of one mini-batch after another, shuffled anew each epoch, without end.

    The order depends on (seed, device, round) alone; the short last batch is kept.
    """
    key = hashlib.sha256(f"{seed}/{device}/{round_}".encode()).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    while True:
        order = rng.permutation(samples)
        for start in range(0, samples, batch):
            yield order[start : start + batch]


def train(
    session: Session,
    algorithm: FedAvg,
    data: Data,
    *,
    x: F32,
    n_train: int,
    n_update: int,
    c: F32 | None = None,
    c_i: I64 | None = None,
    seed: int,
    device: str,
    round_: int,
    local: Sequence[slice] = (),
    kept: F32 | None = None,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, int], None] = lambda _step, _of: None,
) -> Outcome:
    """Run a device's local steps from the model ``x`` (float32 [n_params]).

    ``c`` float32 and ``c_i`` int64 [n_train] where the algorithm has controls. ``local``:
    the parts of the vector that each device keeps to itself (batch statistics), ``kept``
    their values after the last round; their delta_y is zero. ``stop`` is
    asked after each step; what was done until then counts (partial work, FedProx's
    inexact solution). Raises ``TrainingFailed`` where no step was run or the result
    cannot be sent.
    """
    params = session.params
    _place(params, x, local, kept)
    controls = isinstance(algorithm, Scaffold)
    work = Work(
        y=params[:n_train],
        g=session.grads[:n_train],
        x=x[:n_train],
        c=c if controls else None,
        c_i=c_i if controls else None,
    )
    batch = algorithm.batch(len(data))
    full_gradient = None
    if isinstance(algorithm, Scaffold) and algorithm.option == "I":
        full_gradient = _full_gradient(session, data, batch, n_train)
        _place(params, x, local, kept)  # the pass may have moved buffers
    step = algorithm.stepper(work)
    planned = algorithm.planned_steps(len(data))
    rate_sum = loss_sum = penalty_sum = 0.0
    steps = 0
    for index in batches(len(data), batch, seed=seed, device=device, round_=round_):
        loss = session.step(data.x[index], data.y[index])
        if not np.isfinite(loss):
            raise TrainingFailed(f"the loss became {loss} at step {steps}: lower local_lr")
        penalty_sum += algorithm.penalty(work)
        rate = algorithm.rate(steps)
        step(rate)
        loss_sum += loss
        rate_sum += rate
        steps += 1
        progress(steps, planned)
        if steps >= planned or stop():
            break
    delta_y = params[:n_update] - x[:n_update]
    for part in local:
        delta_y[part] = 0
    if not np.isfinite(delta_y).all():
        raise TrainingFailed("the parameters are no longer finite: lower local_lr")
    delta_c = sent = None
    if isinstance(algorithm, Scaffold):
        assert c_i is not None
        try:
            delta_c, sent = algorithm.control_change(
                work, delta_y[:n_train], rate_sum, full_gradient
            )
            kernels.to_grid(kernels.from_grid(c_i + delta_c))  # c_i itself must stay on the grid
        except ValueError as error:
            raise TrainingFailed(f"the control variate is out of range: {error}") from None
    return Outcome(
        delta_y=delta_y,
        delta_c=delta_c,
        delta_c_sent=sent,
        steps=steps,
        rate_sum=rate_sum,
        samples=len(data),
        loss=loss_sum / steps,
        objective=(loss_sum + penalty_sum) / steps,
        drift=kernels.norm(delta_y[:n_train]),
        kept=np.concatenate([params[part] for part in local]) if local else None,
    )


def _place(params: F32, x: F32, local: Sequence[slice], kept: F32 | None) -> None:
    """Start from the model, and from what this device has kept."""
    params[: len(x)] = x
    if kept is None:
        return
    start = 0
    for part in local:
        size = part.stop - part.start
        params[part] = kept[start : start + size]
        start += size


def _full_gradient(session: Session, data: Data, batch: int, n_train: int) -> NDArray[np.float64]:
    """The mean gradient over all samples at the current parameters, weighted by batch size."""
    total = np.zeros(n_train)
    for start in range(0, len(data), batch):
        part = slice(start, start + batch)
        session.step(data.x[part], data.y[part])
        total += session.grads[:n_train].astype(np.float64) * len(data.y[part])
    return total / len(data)
