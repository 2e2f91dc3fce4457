"""What an operator decides about a fleet."""

from __future__ import annotations

from dataclasses import dataclass, field

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.limits import MAX_PART, MIN_PART
from kellet.sdk.protocol.topics import check_id
from kellet.server.cohort import FirstCome, Selection

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

    def __post_init__(self) -> None:
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
        )
        for name, good, text in wanted:
            if not good:
                value = getattr(self, name)
                raise UsageError(f"{name} = {value!r}", why=f"it must be {text}")
