"""One run of the benchmarks: its settings, the peers that are here, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench import limits
from bench.case import Case, Prepare
from bench.codecs import CODECS
from bench.results import FORMAT, Measured, Results, machine, today, versions
from bench.steps import STEPS
from kellet import kernels

__all__ = ["Run"]


@dataclass
class Run:
    """``peers`` by case; ``left_out`` says why a peer is in no case."""

    label: str
    note: str
    budget: float
    deadline: float
    threads: int
    memory: str
    peers: dict[str, dict[str, Prepare]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    measured: list[Measured] = field(default_factory=list)

    def peers_of(self, case: Case) -> dict[str, Prepare]:
        """Return NumPy's and PyTorch's peers of a case, without those left out of the run."""
        peers = {**case.peers, **self.peers.get(case.name, {})}
        return {name: peer for name, peer in peers.items() if name not in self.left_out}

    def results(self) -> Results:
        order = {case.name: i for i, case in enumerate(STEPS + CODECS)}
        return Results(
            format=FORMAT,
            label=self.label,
            note=self.note,
            date=today(),
            threads=self.threads,
            backend=kernels.backend(),
            memory=self.memory,
            limits_by=limits.MADE_BY,
            machine=machine(),
            versions=versions(),
            left_out=self.left_out,
            measured=sorted(self.measured, key=lambda m: (order[m.case], m.n)),
        )
