"""Clients in several processes: what they are asked, and how their answers come together."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.errors import FleetError, UsageError
from kellet.server.history import ClientMetrics
from kellet.server.simulate.client import Reply
from kellet.server.simulate.crew import Crew, Enlisted, Events, Terms
from kellet.server.sums import ExactSum

__all__ = [
    "UNPICKLABLE",
    "Answer",
    "Brief",
    "Crews",
    "RemoteTraceback",
    "Worker",
    "Workers",
    "cannot_travel",
    "dealt",
]

UNPICKLABLE = (pickle.PicklingError, AttributeError, TypeError)  # what pickle raises

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Brief:
    """What a worker begins with.

    ``modules`` are imported, so that a user's algorithms are registered there, too.
    ``kernels``: the backend of the process that asks.
    """

    terms: Terms
    clients: Mapping[str, Enlisted]
    modules: tuple[str, ...]
    kernels: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker answers: a value, or the error that it met and where."""

    value: Any = None
    error: BaseException | None = None
    trace: str = ""

    def in_words(self) -> Answer:
        """The same where the value or the error (of a user's class) cannot be pickled."""
        said = "an answer" if self.error is None else f"{type(self.error).__name__}: {self.error}"
        error = FleetError(said, why="it was made in a worker, and cannot be pickled")
        return Answer(error=error, trace=self.trace)


class RemoteTraceback(Exception):
    """Where in a worker an error was raised: the cause of that error here."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class Worker:
    """The worker's side: one crew, and what it is asked.

    ``path``: where modules are looked for beside the places of this process, so that a brief
    that names a user's functions can be read.
    """

    def __init__(self, path: Sequence[str]) -> None:
        sys.path += [entry for entry in path if entry not in sys.path]
        self._crew: Crew

    def answer(self, what: str, arguments: Sequence[Any]) -> Answer:
        """Do it. Whatever goes wrong is an answer: it is raised where it was asked for."""
        try:
            return Answer(self._do(what, arguments))
        except Exception as error:
            return Answer(error=error, trace=traceback.format_exc())

    def _do(self, what: str, arguments: Sequence[Any]) -> Any:
        match what:
            case "begin":
                return self._begin(*arguments)
            case "take":
                return self._crew.take(*arguments)
            case "committed":
                return self._crew.committed(*arguments)
            case "controls":
                return self._crew.controls()
            case "metrics":
                return self._crew.metrics(*arguments)
            case "personal":
                return self._crew.personal()
        raise ValueError(f"a worker is asked to {what}")

    def _begin(self, brief: Brief) -> None:
        kernels.use_backend(brief.kernels)
        for module in brief.modules:
            try:
                import_module(module)
            except ImportError as error:
                raise UsageError(
                    f"a worker cannot import {module}",
                    why=str(error),
                    repair="put the algorithm into a module that is installed on every machine",
                ) from error
        self._crew = Crew(brief.terms, brief.clients)


class Workers(Protocol):
    """Some workers, by number. Each is asked one thing at a time."""

    def __len__(self) -> int: ...

    def ask(self, worker: int, what: str, *arguments: Any) -> None: ...

    def answer(self, worker: int) -> Answer:
        """Wait for it. Raises ``FleetError`` where the worker has ended."""
        ...

    def close(self) -> None: ...


class Crews:
    """An engine whose clients are dealt out to workers, each of which has a crew."""

    def __init__(self, workers: Workers, hands: Sequence[Mapping[str, Enlisted]]) -> None:
        """``hands``: the clients of each worker, by name, which ``begin`` has given to it."""
        self._workers = workers
        self._of = {device: number for number, hand in enumerate(hands) for device in hand}

    def begun(self) -> None:
        """Wait until all have begun. Raises what one of them met."""
        for worker in range(len(self._workers)):
            self._value(worker)

    def take(self, events: Events, now: float) -> list[Reply]:
        shares: dict[int, list[int]] = {}
        for place, (device, _) in enumerate(events):
            shares.setdefault(self._of[device], []).append(place)
        for worker, places in shares.items():
            self._workers.ask(worker, "take", [events[place] for place in places], now)
        replies: dict[int, Reply] = {}
        for worker, places in shares.items():
            replies |= zip(places, self._value(worker), strict=True)
        return [replies[place] for place in range(len(events))]

    def committed(self, counted: Collection[bytes], weights: Mapping[str, int]) -> ExactSum | None:
        total: ExactSum | None = None
        for part in self._all("committed", frozenset(counted), weights):
            if part is not None:
                total = total or ExactSum(len(part))
                total.merge(part)
        return total

    def controls(self) -> dict[str, I64]:
        return self._joined("controls")

    def metrics(self, model: F32) -> dict[str, ClientMetrics]:
        return self._joined("metrics", model)

    def personal(self) -> dict[str, F32]:
        return self._joined("personal")

    def close(self) -> None:
        self._workers.close()

    def _joined(self, what: str, *arguments: Any) -> dict[str, Any]:
        return {
            device: value for part in self._all(what, *arguments) for device, value in part.items()
        }

    def _all(self, what: str, *arguments: Any) -> list[Any]:
        for worker in range(len(self._workers)):
            self._workers.ask(worker, what, *arguments)
        return [self._value(worker) for worker in range(len(self._workers))]

    def _value(self, worker: int) -> Any:
        answer = self._workers.answer(worker)
        if answer.error is not None:
            raise answer.error from RemoteTraceback(answer.trace)
        return answer.value


def cannot_travel(why: str) -> UsageError:
    """For what workers would have to be given."""
    return UsageError(
        "the workers cannot be given what this simulation is made of",
        why=why,
        repair="define functions and classes at the top of a module, or use the inline engine",
    )


def dealt(clients: Mapping[str, Enlisted], workers: int) -> list[dict[str, Enlisted]]:
    """The clients of each worker: by turns, so that any cohort is spread over most of them."""
    names = list(clients)
    return [
        {name: clients[name] for name in names[number::workers]}
        for number in range(min(workers, len(names)))
    ]
