"""How a round's vectors leave a device: coded, and what of them arrives.

What the server decodes is what both sides go on from: delta_c is derived from it,
c_i follows it. What a lossy codec left out of delta_y may be added to the next update
(error feedback, Karimireddy et al. 2019, arXiv 1901.09847), but nowhere else: c_i is
the error memory of delta_c already, and feedback on top of it, or on a delta_y
from which delta_c is derived, diverges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.coded import decode_parts
from kellet.sdk.controls import Parts
from kellet.sdk.errors import UsageError
from kellet.sdk.heap import parts
from kellet.sdk.local import TrainingFailed
from kellet.sdk.protocol.messages import Codecs, DeltaC
from kellet.sdk.protocol.vectors import Codec, encode_vector

__all__ = ["Coded", "Uplink", "code"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

LIMIT = 2.0**14  # what the sums' grid holds


@dataclass(frozen=True, kw_only=True)
class Uplink:
    """How one device sends one round's vectors.

    ``delta_y``: the codec it takes, one of those announced; ``share``: k/n of ``topk``.
    ``feedback``: whether a residual is kept, ``residual``: the one that earlier updates
    left, float32 [n_update], None for zeros. Raises ``UsageError`` for feedback where it
    would diverge.
    """

    delta_y: Codec = "f32"
    delta_c: DeltaC = "none"
    share: float = 0.0
    feedback: bool = False
    residual: F32 | None = None

    def __post_init__(self) -> None:
        if self.feedback and self.delta_c == "derived":
            raise UsageError(
                "error feedback on a delta_y from which delta_c is derived",
                why="c_i is the memory of that error already: with a second one both diverge",
                repair="let delta_c travel (f32 or q8), or leave feedback out",
            )

    @classmethod
    def of(cls, codecs: Codecs, preferred: Codec = "f32", residual: F32 | None = None) -> Self:
        """As announced; ``preferred`` for delta_y where that is accepted."""
        return cls(
            delta_y=preferred if preferred in codecs.delta_y else codecs.delta_y[0],
            delta_c=codecs.delta_c,
            share=codecs.share,
            feedback=codecs.feedback,
            residual=residual,
        )


class Coded(NamedTuple):
    """The bytes of a vector, what they decode to, and what they left out."""

    sent: bytes | memoryview
    decoded: Parts[np.float32]
    residual: F32 | None


def code(
    codec: Codec,
    v: F32,
    layout: I64,
    *,
    borrowed: bool = False,
    seed: int,
    share: float = 0.0,
    feedback: bool = False,
    residual: F32 | None = None,
) -> Coded:
    """Code ``v`` (float32 [n]), which is used up.

    Its memory becomes the bytes' or the residual's, unless it is ``borrowed``. With ``feedback``,
    v + ``residual`` is coded, and the new residual is that minus what it decodes to. Raises
    ``TrainingFailed`` where a value is not finite or not inside (-2^14, 2^14), which
    the server would refuse.
    """
    if feedback and residual is not None:
        v += residual
    _check(v)
    if codec == "f32":
        if borrowed:
            v = v.copy()
        left = np.zeros_like(v) if feedback else None
        return Coded(v.astype("<f4", copy=False).data.cast("B").toreadonly(), v, left)
    sent = encode_vector(codec, v, layout, seed=seed, share=share)
    decoded = decode_parts(codec, sent, layout, len(v))
    left = None
    if feedback:
        left = v.copy() if borrowed else v
    del v
    for part in parts(len(decoded)):
        some = decoded[part]
        _check(some)
        if left is not None:
            left[part] -= some
    return Coded(sent, decoded, left)


def _check(v: F32) -> None:
    for part in parts(len(v)):
        if not np.isfinite(v[part]).all():
            raise TrainingFailed("the parameters are no longer finite: lower local_lr")
        largest = float(np.abs(v[part]).max())
        if largest >= LIMIT:
            raise TrainingFailed(
                f"a parameter or control moved by {largest:g}, and updates hold less than "
                f"{LIMIT:g}: lower local_lr"
            )
