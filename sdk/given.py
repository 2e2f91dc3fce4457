"""What a round's training starts from: taken out of cache and store, and decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.blobs import BlobCache
from kellet.sdk.coded import decode_parts
from kellet.sdk.controls import Controls, FloatVector, Parts, Zeros
from kellet.sdk.protocol.messages import Round
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.store import Store

__all__ = ["Given"]

F32 = NDArray[np.float32]


@dataclass
class Given:
    """``model`` and ``c``: blobs of the announcement, as they travelled; ``kept`` and
    ``residual`` float32: of the store, None for nothing; so is ``memory``, the algorithm's.
    ``newcomer``: this device has no control yet.
    """

    round: Round
    model: bytes | memoryview
    c: bytes | memoryview | None
    kept: F32 | None
    residual: F32 | None
    memory: F32 | None
    newcomer: bool

    @classmethod
    def take(cls, round_: Round, cache: BlobCache, store: Store) -> Self:
        """Read it all. The cache gives the blobs away, to be let go of as early as can be."""
        model, *control = cache.take(
            *(blob.sha256 for blob in (round_.model, round_.control) if blob)
        )
        plan = round_.plan.sha256
        return cls(
            round=round_,
            model=model,
            c=control[0] if control else None,
            kept=_floats(store.kept(plan)),
            residual=_floats(store.residual(plan)),
            memory=_floats(store.memory(plan, str(round_.algorithm.get("name")))),
            newcomer=store.newcomer,
        )

    def decode(
        self, algorithm: FedAvg, shapes: Shapes, c_i: Callable[[int], Parts[np.int64]]
    ) -> tuple[FloatVector, Controls | None]:
        """The model, and the controls where the round has some; the blobs are theirs from now on.

        c is zero where none travels, and for a newcomer whom ``algorithm`` spares it. ``c_i``
        reads this device's own, of so many elements. Raises ``ProtocolError`` for blobs that are
        no such vectors, and what ``c_i`` does.
        """
        controls = None
        if algorithm.controls:
            c: Parts[np.float32] = Zeros(shapes.n_train)
            spared = algorithm.spares_newcomers and self.newcomer
            if self.c is not None and self.round.control is not None and not spared:
                c = decode_parts(self.round.control.codec, self.c, shapes.train, shapes.n_train)
            controls = Controls(c, c_i(shapes.n_train))
        x = decode_parts(self.round.model.codec, self.model, shapes.update, shapes.n_update)
        self.model, self.c = b"", None
        return x, controls


def _floats(raw: bytes | None) -> F32 | None:
    return None if raw is None else np.frombuffer(raw, "<f4")
