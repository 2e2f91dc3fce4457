"""y in float32, beside the model that it started from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.kernels import Int8Rows
from kellet.sdk.algorithms import FedAvg, Work
from kellet.sdk.controls import (
    Controls,
    FloatVector,
    Piece,
    pieces,
    quantised_shift,
    rows_of,
)
from kellet.sdk.heap import parts
from kellet.sdk.local import FloatSession, place
from kellet.sdk.plan.schemes import FLOAT32

__all__ = ["FloatLocal"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


class FloatLocal:
    """``LocalModel`` on a ``GradientSession``.

    ``x``: float32 [n_update] or [n_params]; it is read until the round's end.
    ``shift_rows``: the int8 layout to hold SCAFFOLD's shift in; float32 without it.
    ``memory``: the algorithm's, float32 [n_train]; None for zeros.
    """

    scheme = FLOAT32
    borrows = False

    def __init__(
        self,
        session: FloatSession,
        algorithm: FedAvg,
        x: FloatVector,
        *,
        n_train: int,
        n_update: int,
        controls: Controls | None = None,
        local: Sequence[slice] = (),
        kept: F32 | None = None,
        shift_rows: I64 | None = None,
        memory: F32 | None = None,
    ) -> None:
        self._session = session
        self._algorithm = algorithm
        self._x = x[:n_update]
        self.start: F32 | None = self._x
        self._n_train = n_train
        self._local = local
        self._controls = controls
        params = session.params
        params[: x.shape[0]] = x[:]
        place(params, local, kept)
        self._y = params[:n_train]
        self._buffers = params[n_train:n_update].copy()
        self._here: F32 | None = None  # y, while its gradient is taken ahead
        self._cut: tuple[Piece, ...] = ()
        self._shift: F32 | Int8Rows | None = None
        if controls is not None and shift_rows is not None:
            self._cut = _pieces_of(shift_rows)
            self._shift = quantised_shift(controls, self._cut, shift_rows)
        elif controls is not None:
            self._shift = kernels.aligned(n_train)
            for part in parts(n_train):
                controls.shift(part, self._shift[part])
        held: F32 | None = None
        if algorithm.memory:
            held = kernels.aligned(n_train)
            held[:] = 0 if memory is None else memory
        self._work = Work(self._y, session.grads[:n_train], self._x[:n_train], self._shift, held)
        self._step = algorithm.stepper(self._work)

    def gradient(self, x: F32, y: I64) -> float:
        return self._session.step(x, y)

    def gradients(self) -> Iterator[tuple[slice, F32]]:
        for part in parts(self._n_train):
            yield part, self._session.grads[part]

    def look_ahead(self, rate: float, x: F32, y: I64) -> float:
        if self._here is None:
            self._here = kernels.aligned(self._n_train)
        self._here[:] = self._y
        kernels.sgd_step(self._y, self._session.grads[: self._n_train], rate)
        loss = self._session.step(x, y)
        self._y[:] = self._here
        return loss

    def step(self, rate: float) -> None:
        self._step(rate)

    def restore_buffers(self) -> None:
        start = self._n_train
        self._session.params[start : start + len(self._buffers)] = self._buffers

    def distance(self) -> float:
        return math.sqrt(
            sum(
                kernels.distance(self._y[part], self._x[part]) ** 2 for part in parts(self._n_train)
            )
        )

    def delta_y(self, rate_sum: float) -> F32:
        delta: F32 = kernels.aligned(len(self._x))
        np.subtract(self._session.params[: len(self._x)], self._x, out=delta)
        if isinstance(self._shift, Int8Rows):
            assert self._controls is not None
            for piece in self._cut:
                taken = kernels.dequantise(rows_of(self._shift, piece)).astype(np.float64)
                error = taken - self._controls.shift(piece.flat)
                delta[piece.flat] = delta[piece.flat] + rate_sum * error
        for part in self._local:
            delta[part] = 0
        return delta

    def remembered(self, rate_sum: float) -> F32 | None:
        if self._work.memory is not None:
            self._algorithm.remember(self._work, rate_sum)
        return self._work.memory

    def kept(self) -> F32 | None:
        if not self._local:
            return None
        return np.concatenate([self._session.params[part] for part in self._local])


def _pieces_of(layout: I64) -> tuple[Piece, ...]:
    """Cut a layout that covers the plan's vector from its start."""
    offset, tensors = 0, []
    for rows, length in layout.reshape(-1, 2).tolist():
        tensors.append((offset, (rows, length)))
        offset += rows * length
    return pieces(tensors)
