"""The local loop: one device's part of a round, under a budget."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.controls import Controls, Derived, FloatVector, Parts, Sent
from kellet.sdk.heap import parts
from kellet.sdk.local import (
    FloatSession,
    Int8WeightSession,
    LocalModel,
    TrainingFailed,
    round_seed,
)
from kellet.sdk.local_float import FloatLocal
from kellet.sdk.local_int8 import Int8Local, Int8Stepping, int8_steps
from kellet.sdk.plan.schemes import FLOAT32
from kellet.sdk.protocol.vectors import Codec, Shapes
from kellet.sdk.uplink import Uplink, code

__all__ = [
    "Data",
    "Holdout",
    "Outcome",
    "TrainingFailed",
    "batches",
    "begin",
    "train",
    "train_from",
]

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bytes = bytes | memoryview

GRID_LIMIT = 1 << 62  # 2^14 on the grid 2^-48
_LOOKS = 8  # at the distance from x in a round: one costs a small int8 plan as much as a step


@dataclass(frozen=True, slots=True)
class Data:
    """A device's own samples: ``x`` float32 [n, *input], ``y`` int64 [n]."""

    x: F32
    y: I64

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, slots=True)
class Holdout:
    """A model on a device's own ``samples`` held-out samples."""

    samples: int
    loss: float
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a device's round came to.

    ``delta_y`` float32 [n_update]: the update as it will be decoded; ``delta_y_sent`` its
    bytes, in ``codec``. ``delta_c`` int64 [n_train] on the grid, as it will be counted;
    ``delta_c_sent`` its bytes where it travels. Both vectors give an array for any slice.
    ``residual`` float32 [n_update]: what error feedback keeps; ``memory`` float32 [n_train]:
    what the algorithm does. ``loss`` is the mean data loss over the steps, ``objective`` adds
    the mean proximal term (of more than 8 planned steps, 8 are looked at, and those between lie
    on a line), ``drift`` is ||y - y_0|| over the trained parameters. ``spared``: a newcomer's
    steps were not corrected. ``kept`` float32: what stays on the device, where the plan keeps
    something there. ``stopped``: why training ended before its last step.
    """

    delta_y: Parts[np.float32]
    delta_y_sent: Bytes
    delta_c: Parts[np.int64] | None
    delta_c_sent: Bytes | None
    steps: int
    rate_sum: float
    samples: int
    loss: float
    objective: float
    drift: float
    kept: F32 | None = None
    residual: F32 | None = None
    memory: F32 | None = None
    spared: bool = False
    scheme: str = FLOAT32
    codec: Codec = "f32"
    stopped: str = ""


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


def begin(
    session: FloatSession | Int8WeightSession,
    algorithm: FedAvg,
    x: FloatVector,
    *,
    shapes: Shapes,
    controls: Controls | None = None,
    seed: int,
    device: str,
    round_: int,
    local: Sequence[slice] = (),
    kept: F32 | None = None,
    memory: F32 | None = None,
    int8_shift: bool = False,
    stepping: Int8Stepping = int8_steps,
) -> LocalModel:
    """Put the model ``x`` (float32 [n_update] or [n_params]) into the session.

    With an int8 session x is not needed any longer afterwards. ``controls`` where the
    algorithm has them. ``local``: the parts of the vector that each device keeps to
    itself (batch statistics), ``kept`` their values after the last round; their delta_y
    is zero. ``memory``: what the algorithm keeps from round to round. ``int8_shift``: hold
    SCAFFOLD's shift as int8 rows, with float32 weights too. ``stepping`` replaces the int8
    step in experiments, and is not for devices. Raises ``TrainingFailed`` where a shift is
    not finite, ``UsageError`` where the algorithm cannot be run on int8.
    """
    controls = controls if algorithm.controls else None
    if controls is not None:
        lengths = len(controls.c), len(controls.c_i)
        if lengths != (shapes.n_train, shapes.n_train):
            raise ValueError(
                f"c has {lengths[0]} entries, c_i {lengths[1]}: the plan trains {shapes.n_train}"
            )
    try:
        # isinstance looks for each member of the protocol, which takes 40 microseconds.
        if hasattr(session, "weight_grads"):
            return Int8Local(
                cast("Int8WeightSession", session),
                algorithm,
                x,
                draw=partial(round_seed, seed, device, round_),
                controls=controls,
                local=local,
                kept=kept,
                stepping=stepping,
            )
        return FloatLocal(
            session,
            algorithm,
            x,
            n_train=shapes.n_train,
            n_update=shapes.n_update,
            controls=controls,
            local=local,
            kept=kept,
            shift_rows=shapes.train if int8_shift else None,
            memory=memory,
        )
    except ValueError as error:
        what = "the correction c - c_i cannot be held" if controls else f"{algorithm.name} fails"
        raise TrainingFailed(f"{what}: {error}") from None


def train(
    session: FloatSession | Int8WeightSession,
    algorithm: FedAvg,
    data: Data,
    *,
    x: FloatVector,
    shapes: Shapes,
    c: Parts[np.float32] | None = None,
    c_i: Parts[np.int64] | None = None,
    seed: int,
    device: str,
    round_: int,
    local: Sequence[slice] = (),
    kept: F32 | None = None,
    int8_shift: bool = False,
    uplink: Uplink | None = None,
    stop: Callable[[], str] = lambda: "",
    progress: Callable[[int, int], None] = lambda _step, _of: None,
) -> Outcome:
    """Run a device's local steps from the model ``x``: ``begin``, then ``train_from``.

    ``c`` float32 and ``c_i`` int64 [n_train] where the algorithm has controls.
    """
    controls = Controls(c, c_i) if c is not None and c_i is not None else None
    model = begin(
        session,
        algorithm,
        x,
        shapes=shapes,
        controls=controls,
        seed=seed,
        device=device,
        round_=round_,
        local=local,
        kept=kept,
        int8_shift=int8_shift,
    )
    return train_from(
        model,
        algorithm,
        data,
        shapes=shapes,
        controls=controls,
        seed=seed,
        device=device,
        round_=round_,
        uplink=uplink,
        stop=stop,
        progress=progress,
    )


def train_from(
    model: LocalModel,
    algorithm: FedAvg,
    data: Data,
    *,
    shapes: Shapes,
    controls: Controls | None,
    seed: int,
    device: str,
    round_: int,
    uplink: Uplink | None = None,
    stop: Callable[[], str] = lambda: "",
    progress: Callable[[int, int], None] = lambda _step, _of: None,
) -> Outcome:
    """Run the local steps of a model that ``begin`` made, and code what came of them.

    ``uplink``: how the vectors travel; in float32, and as the algorithm says, without it.
    ``stop`` is asked after each step for a reason to end; what was done until then counts
    (partial work, FedProx's inexact solution). Raises ``TrainingFailed`` where no step was
    run or the result cannot be sent.
    """
    batch = algorithm.batch(len(data))
    full_gradient = None
    if algorithm.begins_with_gradient:
        full_gradient = _full_gradient(model, data, batch, shapes.n_train)
    planned = algorithm.planned_steps(len(data))
    penalty = _PenaltySum(algorithm, model, planned)
    rate_sum = weight = loss_sum = gained = 0.0
    steps = 0
    stopped = ""
    gather = _Gather(data, batch)
    order = batches(len(data), batch, seed=seed, device=device, round_=round_)
    for index in order:
        loss = ahead = model.gradient(*gather(index))
        if algorithm.lookahead and math.isfinite(loss):
            ahead = model.look_ahead(algorithm.lookahead, *gather(next(order)))
            gained += ahead - loss
        if not math.isfinite(ahead):
            raise TrainingFailed(f"the loss became {ahead} at step {steps}: lower local_lr")
        penalty.before(steps)
        rate = algorithm.rate(steps)
        model.step(rate)
        loss_sum += loss
        rate_sum, weight = algorithm.advance(rate_sum, weight, rate)
        steps += 1
        progress(steps, planned)
        if steps >= planned:
            break
        stopped = stop()
        if stopped:
            break
    drift = model.distance()
    penalty.end(steps, drift)
    memory = model.remembered(rate_sum)
    if memory is not None and not np.isfinite(memory).all():
        raise TrainingFailed(f"what {algorithm.name} keeps is no longer finite: lower local_lr")
    if uplink is None:
        uplink = Uplink(delta_c=algorithm.control_codec)
    draw = partial(round_seed, seed, device, round_)
    delta_y = model.delta_y(rate_sum)
    # With error feedback, what arrives carries what earlier updates left out as well. A c_i that
    # followed it would be a second memory of the same error, and both diverge.
    moved = delta_y[: shapes.n_train].copy() if uplink.feedback and controls else None
    coded = code(
        uplink.delta_y,
        delta_y,
        shapes.update,
        borrowed=model.borrows,
        seed=draw("delta_y"),
        share=uplink.share,
        feedback=uplink.feedback,
        residual=uplink.residual,
    )
    del delta_y
    delta_c: Parts[np.int64] | None = None
    sent: Bytes | None = None
    if algorithm.controls:
        assert controls is not None
        trained = coded.decoded if moved is None else moved
        change = Derived(algorithm.control_change, controls.c, trained, rate_sum)
        try:
            delta_c, sent = _control_change(
                change,
                controls,
                full_gradient,
                uplink=uplink,
                layout=shapes.train,
                seed=draw("delta_c"),
            )
            _refuse_off_grid(controls, delta_c)
        except ValueError as error:
            raise TrainingFailed(f"the control variate is out of range: {error}") from None
    return Outcome(
        delta_y=coded.decoded,
        delta_y_sent=coded.sent,
        delta_c=delta_c,
        delta_c_sent=sent,
        steps=steps,
        rate_sum=rate_sum,
        samples=len(data),
        loss=loss_sum / steps,
        objective=(loss_sum + gained + penalty.total) / steps,
        drift=drift,
        kept=model.kept(),
        residual=coded.residual,
        memory=memory,
        spared=algorithm.announces_control and controls is not None and not controls.corrected,
        scheme=model.scheme,
        codec=uplink.delta_y,
        stopped=stopped,
    )


class _Gather:
    """Copies a full batch's rows into the same two arrays each time.

    Fancy indexing would make two new ones a step.
    """

    def __init__(self, data: Data, batch: int) -> None:
        self._data = data
        self._x = np.empty((batch, *data.x.shape[1:]), data.x.dtype)
        self._y = np.empty((batch, *data.y.shape[1:]), data.y.dtype)

    def __call__(self, index: I64) -> tuple[F32, I64]:
        if len(index) != len(self._y):
            return self._data.x[index], self._data.y[index]
        # Indices of a permutation need no check, and NumPy buffers what it checks.
        self._data.x.take(index, axis=0, out=self._x, mode="clip")
        self._data.y.take(index, axis=0, out=self._y, mode="clip")
        return self._x, self._y


class _PenaltySum:
    """``total``: the sum of the proximal term over the steps, each at the y it starts from.

    It is only reported, so it is computed at every ``stride``-th step and at the end; between
    two of these it is taken for linear. With ``_LOOKS`` planned steps or fewer it is exact.
    """

    def __init__(self, algorithm: FedAvg, model: LocalModel, planned: int) -> None:
        self._algorithm = algorithm
        self._model = model
        self._stride = -(-planned // _LOOKS)
        self._last = (0, 0.0)  # step, and the term before it: y begins at x
        self.total = 0.0

    def before(self, step: int) -> None:
        """Step ``step`` (from 0) is about to be made."""
        if self._algorithm.penalised and step and step % self._stride == 0:
            self.end(step, self._model.distance())

    def end(self, steps: int, distance: float) -> None:
        """Add the steps up to here, ``distance`` away from x after ``steps`` of them."""
        first, value = self._last
        now = self._algorithm.penalty(distance)
        between = steps - first
        self.total += between * value + (now - value) * (between - 1) / 2
        self._last = (steps, now)


def _control_change(
    derived: Derived,
    controls: Controls,
    full_gradient: F64 | None,
    *,
    uplink: Uplink,
    layout: I64,
    seed: int,
) -> tuple[Parts[np.int64], Bytes | None]:
    """delta_c as it will be counted, and as it travels (None: both sides derive it)."""
    if uplink.delta_c == "derived":
        return derived, None
    assert uplink.delta_c != "none"
    wanted: F32 = kernels.aligned(len(derived))
    for part in parts(len(wanted)):
        if full_gradient is None:
            wanted[part] = kernels.from_grid(derived[part])
        else:
            wanted[part] = full_gradient[part] - kernels.from_grid(controls.c_i[part])
    coded = code(uplink.delta_c, wanted, layout, seed=seed, share=uplink.share)
    return Sent(coded.decoded), coded.sent


def _refuse_off_grid(controls: Controls, delta_c: Parts[np.int64]) -> None:
    """``ValueError`` where c_i would leave the grid, or its change does."""
    for part in parts(len(delta_c)):
        after = controls.c_i[part] + delta_c[part]
        if np.abs(after).max() >= GRID_LIMIT:
            raise ValueError("c_i would not lie inside (-2^14, 2^14)")


def _full_gradient(model: LocalModel, data: Data, batch: int, n_train: int) -> F64:
    """The mean gradient over all samples at the start, weighted by batch size."""
    total = np.zeros(n_train)
    for start in range(0, len(data), batch):
        some = slice(start, start + batch)
        model.gradient(data.x[some], data.y[some])
        for part, gradient in model.gradients():
            total[part] += gradient.astype(np.float64) * len(data.y[some])
    model.restore_buffers()  # the pass has moved them
    total /= len(data)
    return total
