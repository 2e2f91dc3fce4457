"""Work one cell: simulate a fleet, and judge its last models."""

from __future__ import annotations

import math
import time
from functools import cache

import msgspec
import numpy as np

from bench.evidence.data import pool
from bench.quantised.grid import NEAREST, Cell, Setting, algorithm
from bench.quantised.nearest import nearest_steps
from kellet.sdk.local_int8 import int8_steps
from kellet.sdk.plan import Plan
from kellet.server.partition import clients_of, dirichlet
from kellet.server.simulate import RoundAbandoned, Simulation
from kellet.server.simulate.kinds import kinds_of

__all__ = ["Finished", "Job", "run"]

_POINTS = 10  # of a curve
_CLASSES = {"wisdm": 6, "har": 6, "mnist": 10}


class Job(msgspec.Struct, frozen=True):
    """A cell, and all that decides what comes of it; ``fingerprint`` stands for the rest."""

    cell: Cell
    setting: Setting
    plan: str  # a built-in name or a path
    fingerprint: str


class Finished(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came of a cell. ``curve``: round and accuracy. ``digest``: of the last model.

    A run that ``ended`` before its last round, since no client could train any more, has
    the accuracy of nothing.
    """

    cell: Cell
    fingerprint: str
    accuracy: float
    last: float
    loss: float
    curve: list[tuple[int, float]]
    digest: str
    control_gap: int
    seconds: float
    ended: str = ""

    @property
    def diverged(self) -> bool:
        """Whether the model learned nothing that lasted: it ended, or is worse than a guess."""
        return bool(self.ended) or self.loss > math.log(_CLASSES[self.cell.task])


def run(job: Job) -> Finished:
    """Simulate a cell. The same job gives the same result, ``seconds`` aside."""
    began = time.perf_counter()
    cell, setting, data = job.cell, job.setting, pool(job.cell.task)
    plan = opened(job.plan)
    parts = dirichlet(data.y, setting.clients, setting.alpha, seed=cell.seed, least=setting.least)
    clients = clients_of(parts, data.x, data.y)
    nearest = cell.scheme == NEAREST
    simulation = Simulation(
        plan,
        clients,
        algorithm(cell.algorithm, setting),
        rounds=setting.rounds,
        seed=cell.seed,
        kinds=kinds_of(clients, scheme="w8.row" if nearest else cell.scheme),
        stepping=nearest_steps if nearest else int8_steps,
        keep_models=True,
    )
    try:
        history = simulation.run()
    except RoundAbandoned as error:  # no client has an update any more
        return Finished(
            cell=cell,
            fingerprint=job.fingerprint,
            accuracy=0.0,
            last=0.0,
            loss=0.0,
            curve=[],
            digest="",
            control_gap=0,
            seconds=round(time.perf_counter() - began, 2),
            ended=str(error),
        )
    evaluator = plan.evaluator()
    tail = range(setting.rounds - setting.tail, setting.rounds)
    every = range(0, setting.rounds, max(1, setting.rounds // _POINTS))
    judged = {i: evaluator.evaluate(history.models[i], *data.test) for i in sorted({*every, *tail})}
    return Finished(
        cell=cell,
        fingerprint=job.fingerprint,
        accuracy=float(np.mean([judged[i].accuracy or 0.0 for i in tail])),
        last=judged[setting.rounds - 1].accuracy or 0.0,
        loss=judged[setting.rounds - 1].loss,
        curve=[(i + 1, round(judged[i].accuracy or 0.0, 4)) for i in every],
        digest=history.digest,
        control_gap=history.control_gap,
        seconds=round(time.perf_counter() - began, 2),
    )


@cache
def opened(source: str) -> Plan:
    """Return the plan, read and verified once a process."""
    return Plan.open(source)
