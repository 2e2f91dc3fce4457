"""What a round begins with: its announcement, and the model and control that it names.

On the wire the model is its first n_update elements: frozen tensors are in the
plan. Where model and control travel as int8 rows, devices begin from what they
decode, while the aggregator keeps the exact model. What rounding took from the model is
added to the next announcement's (error feedback), so that over the rounds devices
train around the exact model. A control needs no such memory: option II takes
the announced control out of c_i again, and at the optimum c and its rows' scales
tend to zero together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk import algorithms as device_algorithms
from kellet.sdk.errors import FleetError, UsageError
from kellet.sdk.plan import Plan
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.body import body_limit, leave_limit
from kellet.sdk.protocol.limits import MAX_PARTS
from kellet.sdk.protocol.messages import (
    Blob,
    Late,
    Round,
    announcement_hash,
    staleness,
)
from kellet.sdk.protocol.parts import part_count
from kellet.sdk.protocol.vectors import Shapes, decode_vector, encode_vector
from kellet.server import algorithms, optimizers
from kellet.server.blobs import Blobs
from kellet.server.config import FleetConfig
from kellet.server.halves import half_of
from kellet.server.ledger import Ledger
from kellet.server.opened import Named, OpenRound
from kellet.server.optimizers import PlainMean
from kellet.server.selection import Draw
from kellet.server.selection.chooser import question_of
from kellet.server.sums import ExactSum
from kellet.server.verify import Terms

__all__ = ["Announcement", "Announcer", "Standing"]

F32 = NDArray[np.float32]
LONGEST = 1e9  # seconds that an announcement can name


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the fleet is when a round is announced.

    ``control_weight``: over which c is C's mean. ``model``: float32 [n_params], exact, and
    ``digest`` the blob of its first n_update elements. ``residual``: the blob of what the
    last announced model left out.
    """

    round: int
    epoch: int
    members: int
    control_weight: int
    model: F32
    digest: bytes
    control: ExactSum
    residual: bytes | None


@dataclass(frozen=True, slots=True)
class Announcement:
    """A round to be opened; ``residual`` is to be written down together with it."""

    message: Round
    raw: bytes
    residual: bytes | None


class Announcer:
    """Makes announcements, and opens the rounds that they are of.

    Raises ``UsageError`` for a configuration that does not fit the plan.
    """

    def __init__(self, config: FleetConfig, plan: Plan, blobs: Blobs, ledger: Ledger) -> None:
        self.shapes = Shapes.of(plan.manifest.tensors)
        _check_parts(config, plan, self.shapes)
        for scheme in config.schemes:
            if scheme not in plan.schemes:
                raise UsageError(
                    f"schemes = {scheme!r}",
                    why=f"the plan has only {', '.join(plan.schemes)}",
                    repair="derive the variant (kellet plan derive), or leave the scheme out",
                )
        if config.personal:
            config.personal.trained(plan.manifest.tensors)  # which refuses what is not there
        self.question = question_of(config.selection, plan.manifest)
        self._config = config
        self._plan = plan
        self._blobs = blobs
        self._ledger = ledger
        if not blobs.has(plan.id):
            blobs.put(plan.raw)
        self._plan_blob = Blob(plan.id, plan.size)

    def make(self, at: Standing, chosen: frozenset[str] | None) -> Announcement:
        """Announce round ``at.round``, for the ``chosen`` devices alone where given."""
        config = self._config
        control = self._control(at) if config.algorithm.announces_control else None
        model, residual = self._model(at)
        target = self._target(chosen)
        optimizer, late = config.server_optimizer, config.buffering
        if late:
            target = late.buffer if chosen is None else min(late.buffer, target)
        message = Round(
            round=at.round,
            epoch=at.epoch,
            plan=self._plan_blob,
            model=model,
            control=control,
            algorithm=config.schedule.at(config.algorithm, at.round).wire(),
            weighting=config.algorithm.weighting,
            codecs=config.codecs,
            members=at.members,
            target=target,
            quorum=min(config.quorum, target),
            deadline=config.deadline,
            # No round lasts longer than its deadline.
            valid=min(config.deadline * (1 + late.max_stale), LONGEST) if late else config.deadline,
            part_size=config.part_size,
            seed=config.seed,
            plan_name=self._plan.manifest.name,
            schemes=tuple(config.schemes),
            late=late or msgspec.UNSET,
            histogram=self.question or msgspec.UNSET,
            server_optimizer=optimizer.wire() if optimizer else msgspec.UNSET,
            personal=config.personal.wire() if config.personal else msgspec.UNSET,
        )
        self._retain(message, at, residual)
        return Announcement(message, wire.pack(message), residual)

    def _target(self, chosen: frozenset[str] | None) -> int:
        """The counted updates at which a round closes."""
        selection = self._config.selection
        if isinstance(selection, Draw):
            return selection.target if chosen is None else min(selection.target, len(chosen))
        return self._config.target if chosen is None else len(chosen)

    def _retain(self, message: Round, at: Standing, residual: bytes | None) -> None:
        """Let go of the blobs that nothing needs any more once ``message`` is announced."""
        # The old residual stays until the new one is written down.
        wanted = {at.digest, at.residual, residual, *(blob.sha256 for blob in message.blobs)}
        earlier = [blob.sha256 for named in self._earlier(message) for blob in named.message.blobs]
        self._blobs.retain({sha256 for sha256 in wanted if sha256}, frozenset(earlier))

    def _earlier(self, message: Round) -> list[Named]:
        """The announcements before this one whose updates are counted in its round.

        What it takes is in the ledger and under their digests. One whose control is gone
        cannot be named any more.
        """
        late = message.buffering
        found = []
        for row in self._ledger.rounds_since(message.round - late.max_stale) if late else ():
            before: Round = wire.unpack(row.announcement, Round)
            stale = staleness(before, message)
            gone = before.control is not None and not self._blobs.has(before.control.sha256)
            if stale and not gone:
                found.append(Named(before, announcement_hash(row.announcement), stale))
        return found

    def _model(self, at: Standing) -> tuple[Blob, bytes | None]:
        """The model as announced, and the blob of what that leaves out."""
        shapes = self.shapes
        if self._config.downlink == "f32":
            return Blob(at.digest, 4 * shapes.n_update), None
        wanted = at.model[: shapes.n_update].copy()
        if at.residual is not None:
            wanted += np.frombuffer(self.blob(at.residual), "<f4")
        try:
            raw = encode_vector("q8", wanted, shapes.update)
        except ValueError as error:
            raise FleetError(
                "the model cannot be announced",
                why=str(error),
                repair="lower server_lr or local_lr, and begin from an earlier model",
            ) from None
        wanted -= decode_vector("q8", raw, shapes.update, shapes.n_update)
        residual = self._blobs.put(vector_bytes(wanted))
        return Blob(self._blobs.put(raw), len(raw), "q8"), residual

    def _control(self, at: Standing) -> Blob:
        codec: Literal["f32", "q8"] = self._config.downlink
        config, half = self._config, half_of(self._config.algorithm)
        optimizer = config.server_optimizer or PlainMean()
        kept = self._ledger.moments() if half.moments else None
        moments = algorithms.moments_of(half, optimizer, kept, self.shapes.n_train)
        c = algorithms.announced_control(at.control, at.control_weight, half, moments)
        raw = encode_vector(codec, c, self.shapes.train)
        return Blob(self._blobs.put(raw), len(raw), codec)

    def blob(self, sha256: bytes) -> bytes:
        """What lies under a digest. Raises ``FleetError`` where nothing does."""
        data = self._blobs.get(sha256)
        if data is None:
            raise FleetError(
                f"{sha256.hex()[:12]} is not in the state directory",
                repair="restore the state directory from a backup",
            )
        return data

    def open(self, message: Round, raw: bytes, chosen: frozenset[str] | None) -> OpenRound:
        """The round of an announcement."""
        return OpenRound(
            message,
            raw,
            earlier=self._earlier(message),
            read=self._terms,
            config=self._config,
            chosen=chosen,
        )

    def _terms(self, named: Named) -> Terms:
        """What updates that name an announcement are held against: c_a as devices decode it."""
        message, control = named.message, None
        if message.control is not None:
            n, data = self.shapes.n_train, self.blob(message.control.sha256)
            control = kernels.aligned(n, np.float32)
            control[:] = decode_vector(message.control.codec, data, self.shapes.train, n)
        return Terms(
            round=message,
            base=named.base,
            algorithm=device_algorithms.from_wire(message.algorithm),
            shapes=self.shapes,
            control=control,
            max_norm=self._config.max_norm,
        )

    def changed_since(self, raw: bytes) -> dict[str, list[Any]]:
        """The settings that differ from those of an announcement: what was, and what is."""
        before: Round = wire.unpack(raw, Round)
        config, optimizer = self._config, self._config.server_optimizer
        was = _settings(
            _completed(before.algorithm),
            seed=before.seed,
            uplink=before.codecs.delta_y,
            share=before.codecs.share,
            feedback=before.codecs.feedback,
            downlink=before.model.codec,
            schemes=before.schemes,
            **_late(before.buffering),
            **optimizers.settings(before.optimizing),
            **_personal(before.personalising),
        )
        now = _settings(
            config.schedule.at(config.algorithm, before.round).wire(),
            seed=config.seed,
            uplink=config.uplink,
            share=config.share,
            feedback=config.feedback,
            downlink=config.downlink,
            schemes=config.schemes,
            **_late(config.buffering),
            **optimizers.settings(optimizer.wire() if optimizer else None),
            **_personal(config.personal.wire() if config.personal else None),
        )
        return {
            name: [was.get(name), now.get(name)]
            for name in sorted(was.keys() | now.keys())
            if was.get(name) != now.get(name)
        }


def _completed(announced: dict[str, Any]) -> dict[str, Any]:
    """An announced algorithm; what its version did not know has the defaults."""
    if announced.get("name") not in device_algorithms.ALGORITHMS:
        return announced  # of a module that is not loaded any more
    return announced | device_algorithms.from_wire(announced).wire()


def _settings(algorithm: dict[str, Any], **others: Any) -> dict[str, Any]:
    lists = {k: list(v) if isinstance(v, tuple) else v for k, v in others.items()}
    return algorithm | lists


def _late(policy: Late | None) -> dict[str, Any]:
    return {"late": "buffer", **msgspec.to_builtins(policy)} if policy else {"late": "drop"}


def _personal(wire: dict[str, Any] | None) -> dict[str, Any]:
    """Under names apart from the algorithm's own."""
    if wire is None:
        return {"personal": "none"}
    others = {f"personal_{name}": value for name, value in wire.items() if name != "name"}
    return {"personal": wire["name"], **others}


def vector_bytes(vector: F32) -> memoryview:
    """Little-endian float32: of the vector itself, where the processor has it so."""
    return vector.astype("<f4", copy=False).view(np.uint8).data


def _check_parts(config: FleetConfig, plan: Plan, shapes: Shapes) -> None:
    codecs = config.codecs
    body = body_limit(shapes, codecs.delta_y, codecs.delta_c, codecs.share)
    largest = max(plan.size, 4 * shapes.n_update, body, leave_limit(shapes))
    if part_count(largest, config.part_size) > MAX_PARTS:
        raise UsageError(
            f"part_size = {config.part_size}",
            why=f"the plan's transfers of {largest} bytes would have more than {MAX_PARTS} parts",
            repair=f"use at least {-(-largest // MAX_PARTS)}",
        )
