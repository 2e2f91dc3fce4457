"""What an operator decides about a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import UsageError
from kellet.sdk.personal import Personal
from kellet.sdk.plan.schemes import FLOAT32, check_scheme
from kellet.sdk.protocol.limits import MAX_PART, MAX_STALE, MIN_PART
from kellet.sdk.protocol.messages import Codecs, Late
from kellet.sdk.protocol.topics import check_id
from kellet.sdk.protocol.vectors import CODECS, Codec
from kellet.server import halves
from kellet.server.optimizers import ServerOptimizer, check_beside
from kellet.server.schedules import CONSTANT, Schedule
from kellet.server.selection import Draw, FirstCome, Selection

__all__ = ["FleetConfig"]


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """How a fleet's rounds run.

    ``rounds``: closed rounds until the run is finished. A round closes at ``target``
    counted updates; at its ``deadline`` (seconds) with at least ``quorum``, else it is
    abandoned and the model stays. ``over_select`` times ``target`` devices are asked.
    The first round waits for ``min_members``. ``admission``: bytes of updates granted at
    once. ``member_ttl``: seconds after which a member counts as silent. One that was
    never counted then leaves N; the others' controls stay in C and bias it, so that
    with more than ``max_silent`` of N silent a new control epoch begins by itself.
    ``seed`` orders the batches.

    ``late``: what becomes of an update of an earlier announcement. ``drop``: it is refused.
    ``buffer``: the round that is open counts it, with a weight that falls with its staleness,
    ``max_stale`` rounds after the one that it names at most; a round then closes at
    ``buffer`` updates (0: ``target``), whatever they name.

    ``uplink``: the codecs accepted for delta_y, the first for devices without a
    preference (how delta_c travels, an algorithm says). ``share``: k/n of topk.
    ``feedback``: what a lossy delta_y left out is added to the device's next.
    ``downlink``: how model and control travel. ``schemes``: how devices may hold their
    weights, names or families, the best first.

    ``server_optimizer``: how the model follows the mean of a round (a value of
    ``kellet.server.algorithms``), at its own ``server_lr``; None for the plain mean, at the
    algorithm's. ``schedule``: the factor of the devices' ``local_lr`` in each round.

    ``personal``: how each device makes a model of its own beside the fleet's (a value of
    ``kellet.sdk.personal``); None for none.
    """

    fleet: str = "kellet"
    worker: str = "0"
    algorithm: FedAvg = field(default_factory=Scaffold)
    rounds: int = 10
    target: int = 2
    quorum: int = 1
    deadline: float = 60.0
    over_select: float = 1.25
    min_members: int = 1
    part_size: int = 65536
    admission: int = 8 << 20
    member_ttl: float = 7 * 86400.0
    max_silent: float = 0.25
    max_norm: float = 0.0
    seed: int = 0
    selection: Selection = field(default_factory=FirstCome)
    uplink: Sequence[Codec] = ("f32",)
    share: float = 0.0
    feedback: bool = False
    downlink: Literal["f32", "q8"] = "f32"
    schemes: Sequence[str] = (FLOAT32,)
    server_optimizer: ServerOptimizer | None = None
    schedule: Schedule = CONSTANT
    personal: Personal | None = None
    late: Literal["drop", "buffer"] = "drop"
    buffer: int = 0
    max_stale: int = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "uplink", tuple(self.uplink))
        object.__setattr__(self, "schemes", tuple(map(check_scheme, self.schemes)))
        check_id("fleet", self.fleet)
        check_id("worker", self.worker)
        wanted = (
            ("rounds", self.rounds >= 1, "at least 1"),
            ("quorum", self.quorum >= 1, "at least 1"),
            ("target", self.target >= self.quorum, f"at least the quorum, {self.quorum}"),
            ("deadline", self.deadline > 0, "more than 0 seconds"),
            ("over_select", self.over_select >= 1, "at least 1"),
            ("min_members", self.min_members >= 1, "at least 1"),
            ("part_size", MIN_PART <= self.part_size <= MAX_PART, f"{MIN_PART} to {MAX_PART}"),
            ("admission", self.admission >= self.part_size, "at least one part"),
            ("member_ttl", self.member_ttl > 0, "more than 0 seconds"),
            ("max_silent", 0 <= self.max_silent <= 1, "0 to 1"),
            ("max_norm", self.max_norm >= 0, "at least 0 (0: no limit)"),
            ("seed", 0 <= self.seed < 2**63, "0 to 2^63 - 1"),
            (
                "uplink",
                _each_once(self.uplink, CODECS),
                f"one or more of {', '.join(CODECS)}, each once",
            ),
            ("share", 0 <= self.share <= 1, "0 to 1"),
            ("downlink", self.downlink in ("f32", "q8"), "f32 or q8"),
            ("schemes", _each_once(self.schemes, self.schemes), "one or more, each once"),
            ("late", self.late in ("drop", "buffer"), "drop or buffer"),
            (
                "buffer",
                self.buffer == 0 or self.buffer >= self.quorum,
                f"at least the quorum, {self.quorum}, or 0 for the target",
            ),
            (
                "selection",
                not isinstance(self.selection, Draw) or self.selection.window < self.deadline,
                f"one whose window is shorter than the deadline, {self.deadline:g} s",
            ),
            ("max_stale", 1 <= self.max_stale <= MAX_STALE, f"1 to {MAX_STALE}"),
        )
        for name, good, text in wanted:
            if not good:
                value = getattr(self, name)
                raise UsageError(f"{name} = {value!r}", why=f"it must be {text}")
        if FLOAT32 not in self.schemes and self.algorithm.int8_refusal:
            raise UsageError(
                f"schemes = {', '.join(self.schemes)}: no device could train in any of them",
                why=self.algorithm.int8_refusal,
                repair="leave that out, or offer f32 too",
            )
        self.codecs.check()
        if self.personal:
            self.personal.recipe(self.algorithm)  # which refuses what would diverge
            if FLOAT32 not in self.schemes:
                raise UsageError(
                    f"personal = {self.personal.name} with schemes = {', '.join(self.schemes)}",
                    why="a personal model takes float32, and no device could train in it",
                    repair="offer f32 too, or leave personal out",
                )
        check_beside(self.algorithm, self.server_optimizer)
        halves.check_beside(self.algorithm, self.server_optimizer)

    @property
    def buffering(self) -> Late | None:
        """The policy for late updates, as it is announced; None where they are refused."""
        if self.late == "drop":
            return None
        return Late(buffer=self.buffer or self.target, max_stale=self.max_stale)

    @property
    def codecs(self) -> Codecs:
        """How the vectors of updates travel."""
        return Codecs(
            delta_y=tuple(self.uplink),
            delta_c=self.algorithm.control_codec,
            feedback=self.feedback,
            share=self.share,
        )


def _each_once(given: Sequence[str], known: Sequence[str]) -> bool:
    return bool(given) and len(set(given)) == len(given) and set(given) <= set(known)
