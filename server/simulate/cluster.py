"""Workers on a Ray cluster that is there already (extra ``cluster``)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from kellet.sdk.errors import ExtraMissing, FleetError, UsageError
from kellet.server.simulate.workers import Answer, Brief, Worker, cannot_travel

__all__ = ["Cluster"]

_START = 120.0  # s for the cluster to place and begin all workers


class Cluster:
    """An actor a worker, each on a CPU of its own, spread over the nodes.

    It joins the cluster that ``RAY_ADDRESS`` names, or this machine's, unless the process is
    connected to one already.
    """

    def __init__(self, workers: int | None) -> None:
        self._ray = _ray()
        self._joined = not self._ray.is_initialized()
        if self._joined:
            try:
                self._ray.init(address="auto", log_to_driver=False, logging_level="error")
            except ConnectionError as error:
                raise FleetError(
                    "no Ray cluster is to be found",
                    why=str(error).splitlines()[0],
                    repair="ray start --head (and on other machines ray start --address=...), "
                    "or set RAY_ADDRESS",
                ) from error
        self._actors: list[Any] = []
        self._asked: dict[int, Any] = {}
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        self.workers = cpus if workers is None else workers
        if not 1 <= self.workers <= cpus:
            self.close()
            raise UsageError(
                f"workers = {self.workers}",
                why=f"the Ray cluster has {cpus} CPUs, and each worker takes one",
                repair=f"use 1 to {cpus}",
            )

    def begin(self, briefs: Sequence[Brief]) -> None:
        """Place the workers, and give each its clients."""
        ray = self._ray
        actor = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(Worker)
        try:
            for number, brief in enumerate(briefs):
                self._actors.append(actor.remote(sys.path))
                self._asked[number] = self._actors[number].answer.remote("begin", (brief,))
            asked = list(self._asked.values())
            begun, _ = ray.wait(asked, num_returns=len(asked), timeout=_START, fetch_local=False)
        except TypeError as error:  # Ray's word for what cannot be pickled
            self.close()
            raise cannot_travel(_in_short(error)) from error
        except BaseException:
            self.close()
            raise
        if len(begun) < len(asked):
            self.close()
            raise FleetError(
                f"{len(begun)} of {len(asked)} workers have begun after {_START:.0f} s",
                why="the cluster's CPUs are taken by others, or its nodes are gone",
                repair="see `ray status`, or use fewer workers",
            )

    def __len__(self) -> int:
        return len(self._actors)

    def ask(self, worker: int, what: str, *arguments: Any) -> None:
        self._asked[worker] = self._actors[worker].answer.remote(what, arguments)

    def answer(self, worker: int) -> Answer:
        try:
            answer: Answer = self._ray.get(self._asked.pop(worker))
        except self._ray.exceptions.RayTaskError as error:
            # The worker itself never raises: it could not be reached with what it was sent.
            raise cannot_travel(_in_short(error.cause)) from error
        except self._ray.exceptions.RayError as error:
            raise FleetError(
                f"worker {worker + 1} of {len(self)} has ended",
                why=_in_short(error),
                repair="see whether its node is up and had memory enough; then run again",
            ) from error
        return answer

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._joined:
            self._ray.shutdown()
            self._joined = False


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ExtraMissing("cluster", "ray") from None
    return ray
