"""y with its weights as int8 rows: no float32 copy of them exists, gradients aside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.kernels import Int8Rows
from kellet.sdk.algorithms import FedAvg, Int8Step, Int8Work, Work
from kellet.sdk.controls import Controls, FloatVector, pieces, quantised_shift, rows_of
from kellet.sdk.local import Draw, Int8WeightSession, TrainingFailed, place

__all__ = ["Int8Local", "Int8Stepping", "int8_steps"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

Int8Stepping = Callable[[FedAvg, Int8Work], Int8Step]


def int8_steps(algorithm: FedAvg, work: Int8Work) -> Int8Step:
    """The algorithm's own step of int8 rows, which rounds stochastically."""
    return algorithm.int8_stepper(work)


class Int8Local:
    """``LocalModel`` on an ``Int8Session``.

    ``x``: float32 [n_update]; read here, and not any more when this returns. y_0 is x
    as the rows hold it: quantised stochastically by ``draw("start")``; steps draw from
    ``draw("steps")`` and their index. Tensors of one dimension are stepped in
    float32. ``stepping`` replaces the int8 step, in experiments.
    """

    borrows = True
    start: F32 | None = None

    def __init__(
        self,
        session: Int8WeightSession,
        algorithm: FedAvg,
        x: FloatVector,
        *,
        draw: Draw,
        controls: Controls | None = None,
        local: Sequence[slice] = (),
        kept: F32 | None = None,
        stepping: Int8Stepping = int8_steps,
    ) -> None:
        layout = session.layout
        self.scheme = session.scheme
        self._session = session
        self._clip = algorithm.clip
        self._controls = controls
        self._taken = 0
        self._rest_in_flat = [
            (held.flat, held.rest) for held in layout.rest if held.tensor.role != "frozen"
        ]
        rest_of = {flat.start: rest for flat, rest in self._rest_in_flat}
        self._local = [rest_of[part.start] for part in local]
        self._cut = pieces((held.tensor.offset, held.shape) for held in layout.weights)
        self._n_train, self._n_update = layout.n_rest_train, layout.n_rest_update

        session.load(x, seed=draw("start"))
        place(session.rest, self._local, kept)
        self._start = session.weights.copy()
        self._rest_start = session.rest[: self._n_update].copy()
        self._shift: Int8Rows | None = None
        rest_shift: F32 | None = None
        if controls is not None:
            self._shift = quantised_shift(controls, self._cut, session.weights.layout)
            rest_shift = kernels.aligned(self._n_train)
            for flat, rest in self._rest_in_flat:
                if rest.stop <= self._n_train:
                    controls.shift(flat, rest_shift[rest])
        self._int8_step = stepping(
            algorithm,
            Int8Work(
                session.weights, session.weight_grads, self._start, self._shift, draw("steps")
            ),
        )
        y, g = session.rest[: self._n_train], session.rest_grads
        self._rest_step = algorithm.unclipped().stepper(
            Work(y, g, self._rest_start[: self._n_train], rest_shift)
        )

    def gradient(self, x: F32, y: I64) -> float:
        return self._session.step(x, y)

    def gradients(self) -> Iterator[tuple[slice, F32]]:
        for piece in self._cut:
            yield piece.flat, self._session.weight_grads[piece.elements]
        for flat, rest in self._rest_in_flat:
            if rest.stop <= self._n_train:
                yield flat, self._session.rest_grads[rest]

    def look_ahead(self, rate: float, x: F32, y: I64) -> float:
        raise TrainingFailed("int8 rows hold no point ahead")

    def step(self, rate: float) -> None:
        if self._clip:
            kernels.clip_norm([self._session.weight_grads, self._session.rest_grads], self._clip)
        left = self._int8_step(rate, self._taken)
        if left:
            # In float32 they would be infinite or NaN from here on. int8 has neither.
            raise TrainingFailed(
                f"{left} of {len(self._start.scales)} int8 rows could not take step {self._taken}: "
                "their update is not finite or beyond a scale of 2^80; lower local_lr"
            )
        self._rest_step(rate)
        self._taken += 1

    def restore_buffers(self) -> None:
        buffers = slice(self._n_train, self._n_update)
        self._session.rest[buffers] = self._rest_start[buffers]

    def distance(self) -> float:
        n = self._n_train
        squares = kernels.distance(self._session.rest[:n], self._rest_start[:n]) ** 2
        for now, start in self._decoded():
            squares += kernels.distance(now, start) ** 2
        return math.sqrt(squares)

    def delta_y(self, rate_sum: float) -> F32:
        delta = self._session.scratch  # the gradients have been taken
        for piece, (now, start) in zip(self._cut, self._decoded(), strict=True):
            if self._shift is None:
                np.subtract(now, start, out=delta[piece.flat])
                continue
            assert self._controls is not None
            taken = kernels.dequantise(rows_of(self._shift, piece)).astype(np.float64)
            error = taken - self._controls.shift(piece.flat)
            delta[piece.flat] = (now - start.astype(np.float64)) + rate_sum * error
        for flat, rest in self._rest_in_flat:
            np.subtract(self._session.rest[rest], self._rest_start[rest], out=delta[flat])
            if rest in self._local:
                delta[flat] = 0
        return delta

    def remembered(self, rate_sum: float) -> F32 | None:
        return None  # no algorithm that has one gets here

    def kept(self) -> F32 | None:
        if not self._local:
            return None
        return np.concatenate([self._session.rest[part] for part in self._local])

    def _decoded(self) -> Iterator[tuple[F32, F32]]:
        """Each piece of y and of y_0 in float32."""
        for piece in self._cut:
            yield (
                kernels.dequantise(rows_of(self._session.weights, piece)),
                kernels.dequantise(rows_of(self._start, piece)),
            )
