"""Engines by name: where a simulation's clients are trained."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Literal, get_args

from kellet import kernels
from kellet.sdk.algorithms import FedAvg
from kellet.sdk.errors import UsageError
from kellet.server.simulate.crew import Crew, Engine, Enlisted, Terms
from kellet.server.simulate.workers import Brief, Crews, dealt

__all__ = ["ENGINES", "EngineName", "check_engine", "start"]

EngineName = Literal["inline", "local", "ray"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)


def check_engine(engine: str, workers: int | None) -> None:
    """``UsageError`` for an engine that there is not, or a number of workers that cannot be."""
    if engine not in ENGINES:
        raise UsageError(f"engine = {engine!r}", repair=f"choose one of {', '.join(ENGINES)}")
    if workers is not None and (engine == "inline" or workers < 1):
        raise UsageError(
            f"workers = {workers} with engine = {engine!r}",
            why="the inline engine trains in this process"
            if engine == "inline"
            else "somebody has to train the clients",
            repair="choose engine = local or ray, and at least 1 worker",
        )


def start(
    engine: EngineName,
    terms: Terms,
    clients: Mapping[str, Enlisted],
    algorithm: FedAvg,
    workers: int | None = None,
) -> Engine:
    """Begin an engine with its clients; it is to be closed.

    ``workers``: how many processes share the clients out, the machine's or the cluster's CPUs
    where that is None, and never more than clients. ``algorithm``: of this run; the module that
    defines it is imported by the workers.
    """
    if engine == "inline":
        return Crew(terms, clients)
    modules = _modules(algorithm, engine)

    def briefs(number: int) -> list[Brief]:
        return [Brief(terms, hand, modules, kernels.backend()) for hand in dealt(clients, number)]

    if engine == "local":
        from kellet.server.simulate.local import Processes

        given = briefs(workers or len(os.sched_getaffinity(0)))
        crews = Crews(Processes(given), [brief.clients for brief in given])
    else:
        from kellet.server.simulate.cluster import Cluster

        cluster = Cluster(workers)
        given = briefs(cluster.workers)
        cluster.begin(given)
        crews = Crews(cluster, [brief.clients for brief in given])
    try:
        crews.begun()
    except BaseException:
        crews.close()
        raise
    return crews


def _modules(algorithm: FedAvg, engine: str) -> tuple[str, ...]:
    """Where a user's algorithm is registered."""
    name = type(algorithm).__module__
    if name.split(".")[0] == "kellet":
        return ()
    if name == "__main__":
        # A spawned process imports the main file by itself, where there is one.
        if engine == "local" and getattr(sys.modules[name], "__file__", None):
            return ()
        raise UsageError(
            f"{type(algorithm).__name__} with engine = {engine!r}",
            why="it is defined where no worker can import it from",
            repair="put it into a module of its own, and import it",
        )
    return (name,)
