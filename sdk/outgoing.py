"""What a device sends: updates and leaves, as they go into the outbox."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from kellet.sdk import algorithms
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.controls import Parts
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.body import UpdateHeader, encode_body
from kellet.sdk.protocol.messages import (
    NO_BASE,
    Round,
    announcement_hash,
    staleness,
    update_uid,
)
from kellet.sdk.store import Memory, Pending, Store
from kellet.sdk.trainer import Holdout, Outcome

__all__ = ["Announced", "leave_of", "memory_of", "update_of"]


@dataclass(frozen=True, slots=True)
class Announced:
    """An announcement, its hash, and the algorithm it names."""

    round: Round
    base: bytes
    algorithm: FedAvg

    @classmethod
    def read(cls, round_: Round, raw: bytes) -> Self:
        """Of an announcement as it came. Raises ``UsageError`` for one that nobody can follow.

        That is an algorithm unknown here, error feedback where it diverges, or
        controls that are and are not.
        """
        kind = algorithms.ALGORITHMS.get(str(round_.algorithm.get("name")))
        algorithm = _algorithm_of(raw, kind)  # type: ignore[arg-type]  # mypy: a class has no hash
        round_.codecs.check()
        announced = (round_.control is not None, round_.codecs.delta_c != "none")
        if announced != (algorithm.announces_control, algorithm.controls):
            raise UsageError(
                f"an announcement of {algorithm.name} with "
                f"{'a' if round_.control else 'no'} control and delta_c {round_.codecs.delta_c}",
                why="an algorithm has controls, or it has none",
                repair="update the aggregator",
            )
        return cls(round_, announcement_hash(raw), algorithm)

    def outlives(self, newer: Round) -> bool:
        """Whether an update of this announcement may still be counted when ``newer`` is open."""
        return staleness(self.round, newer) is not None

    def hurried(self, newer: Round) -> bool:
        """Whether to send what there is: half of the rounds for which it is counted are over.

        The other half is for the upload. A device that is always slower than its fleet's
        rounds would else never be counted, and nobody would learn from its data.
        """
        late, stale = newer.buffering, staleness(self.round, newer)
        return late is not None and stale is not None and 2 * stale > late.max_stale


@lru_cache(8)
def _algorithm_of(raw: bytes, _kind: type[FedAvg] | None) -> FedAvg:
    """The algorithm of an announcement, made once for a fleet in one process.

    ``_kind``: what its name means now, which a user's module may change.
    """
    return algorithms.from_wire(wire.unpack_again(raw, Round).algorithm)


def update_of(
    store: Store,
    announced: Announced,
    outcome: Outcome,
    holdout: Holdout | None,
    personal: Holdout | None = None,
) -> Pending:
    """The next update in the sequence, with the control it leads to if it is counted.

    ``holdout``: the received model on the device's own hold-out; ``personal``: the device's.
    """
    identity, round_ = store.identity, announced.round
    header = UpdateHeader(
        kind="update",
        device=identity.device,
        nonce=identity.nonce,
        seq=store.seq + 1,
        round=round_.round,
        epoch=round_.epoch,
        base=announced.base,
        steps=outcome.steps,
        rate_sum=outcome.rate_sum,
        samples=outcome.samples,
        loss=outcome.loss,
        objective=outcome.objective,
        drift=outcome.drift,
        holdout_samples=holdout.samples if holdout else 0,
        holdout_loss=holdout.loss if holdout else 0.0,
        holdout_accuracy=holdout.accuracy if holdout else None,
        delta_y=outcome.codec,
        delta_c=round_.codecs.delta_c,
        scheme=outcome.scheme,
        spared=True if outcome.spared else msgspec.UNSET,
        personal_loss=personal.loss if personal else msgspec.UNSET,
        personal_accuracy=personal.accuracy if personal else msgspec.UNSET,
    )
    body = encode_body(header, delta_y=outcome.delta_y_sent, delta_c=outcome.delta_c_sent)
    c_i_next = None
    if outcome.delta_c is not None:
        c_i_next = _Moved(store.stored_control(len(outcome.delta_c)), outcome.delta_c)
    return _pending(header, body, c_i_next)


def memory_of(algorithm: FedAvg, outcome: Outcome) -> Memory | None:
    """What the algorithm keeps after this round, as the store takes it."""
    if outcome.memory is None:
        return None
    return Memory(algorithm.name, outcome.memory.astype("<f4", copy=False), algorithm.memory)


@dataclass(frozen=True, slots=True)
class _Moved:
    """c_i + delta_c, computed where it is read: both are as long as the model, in int64."""

    c_i: Parts[np.int64]
    delta_c: Parts[np.int64]

    def __len__(self) -> int:
        return len(self.c_i)

    def __getitem__(self, part: slice) -> NDArray[np.int64]:
        return self.c_i[part] + self.delta_c[part]


def leave_of(store: Store) -> Pending:
    """The last update of a membership: c_i goes back to the aggregator."""
    identity = store.identity
    packed = store.packed_control()
    c_i = None if packed is None else np.frombuffer(packed, "<i8")
    header = UpdateHeader(
        kind="leave",
        device=identity.device,
        nonce=identity.nonce,
        seq=store.seq + 1,
        round=0,
        epoch=store.epoch or 0,
        base=NO_BASE,
    )
    return _pending(
        header, encode_body(header, c_i=c_i), None if c_i is None else np.zeros_like(c_i)
    )


def _pending(header: UpdateHeader, body: bytes, c_i_next: Parts[np.int64] | None) -> Pending:
    return Pending(
        uid=update_uid(header.nonce, header.seq, header.base),
        seq=header.seq,
        round=header.round,
        epoch=header.epoch,
        base=header.base,
        sha256=hashlib.sha256(body).digest(),
        body=body,
        c_i_next=c_i_next,
    )
