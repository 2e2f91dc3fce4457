"""Some of a simulation's clients, with all that they need, in one process.

A crew has the sessions, the data and the stores of its clients, and steps their machines. What
the machines have to say goes back to the simulation, which has broker, aggregator and clock. So
a crew does not care whose process it is in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.local_int8 import Int8Stepping, int8_steps
from kellet.sdk.plan import Evaluator, GradientSession, Int8Session, Plan
from kellet.sdk.protocol.effects import Tick
from kellet.sdk.protocol.topics import Topics, check_id
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.trainer import Data
from kellet.sdk.transport.base import TransportEvent
from kellet.server.history import ClientMetrics
from kellet.server.simulate.client import Client, Reply
from kellet.server.simulate.kinds import Clients, Kind, checked
from kellet.server.sums import ExactSum

__all__ = [
    "ClientEvent",
    "Crew",
    "Engine",
    "Enlisted",
    "Events",
    "Place",
    "Terms",
    "enlist",
    "nonce_of",
]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

ClientEvent = TransportEvent | Tick
Events = Sequence[tuple[str, ClientEvent]]


class Engine(Protocol):
    """Where clients are. A ``Crew`` is one; others spread crews over processes."""

    def take(self, events: Events, now: float) -> list[Reply]:
        """Give each event to its client, in order; what each has to say about it."""
        ...

    def committed(self, counted: Collection[bytes], weights: Mapping[str, int]) -> ExactSum | None:
        """The sum of the clients' c_i as counted; None where all are zero.

        ``counted``: of the updates that wait for a receipt, those that the ledger has counted.
        ``weights``: of the clients' controls, where they are not 1.
        """
        ...

    def controls(self) -> dict[str, I64]:
        """Each client's c_i, int64 [n_train] on the grid."""
        ...

    def metrics(self, model: F32) -> dict[str, ClientMetrics]:
        """How ``model``, float32 [n_params], and their own do on what each holds out."""
        ...

    def personal(self) -> dict[str, F32]:
        """The model of its own of each client that has one, float32 [n_update]."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What all clients of a simulation have in common."""

    plan: Plan
    fleet: str
    stepping: Int8Stepping = int8_steps


@dataclass(frozen=True, slots=True)
class Enlisted:
    """A client before it starts: its data, checked, and who it is.

    ``held``: the samples that it does not train on; ``control``: its c_i, int64 [n_train].
    """

    kind: Kind
    data: Data
    held: Data | None
    nonce: bytes
    control: I64 | None


@dataclass
class Place:
    """What the clients of one process share: a plan, one session a scheme, one evaluator.

    ``raw``: the plan's file, in memory once.
    """

    plan: Plan
    raw: bytes
    shapes: Shapes
    stepping: Int8Stepping
    _sessions: dict[str, GradientSession | Int8Session] = field(default_factory=dict)
    _evaluator: Evaluator | None = None

    def session(self, scheme: str) -> GradientSession | Int8Session:
        if scheme not in self._sessions:
            self._sessions[scheme] = self.plan.session(scheme)
        return self._sessions[scheme]

    def evaluator(self) -> Evaluator:
        if self._evaluator is None:
            self._evaluator = self.plan.evaluator()
        return self._evaluator


class Crew:
    """The clients of one process, by name."""

    def __init__(self, terms: Terms, clients: Mapping[str, Enlisted]) -> None:
        plan = terms.plan
        shapes = Shapes.of(plan.manifest.tensors)
        self.place = Place(plan, plan.raw, shapes, terms.stepping)
        for one in clients.values():
            self.place.session(one.kind.scheme)  # a plan without that variant is refused here
        topics = Topics(terms.fleet)
        self._clients = {
            device: Client(
                self.place,
                topics,
                device,
                kind=one.kind,
                data=one.data,
                held=one.held,
                nonce=one.nonce,
                control=one.control,
            )
            for device, one in clients.items()
        }

    def take(self, events: Events, now: float) -> list[Reply]:
        return [self._clients[device].take(event, now) for device, event in events]

    def committed(self, counted: Collection[bytes], weights: Mapping[str, int]) -> ExactSum | None:
        total: ExactSum | None = None
        for device, client in self._clients.items():
            c_i = client.committed(counted)
            if c_i is not None:
                total = total or ExactSum(len(c_i))
                total.add_grid(c_i, weights.get(device, 1))
        return total

    def controls(self) -> dict[str, I64]:
        return {device: client.control() for device, client in self._clients.items()}

    def metrics(self, model: F32) -> dict[str, ClientMetrics]:
        judged = {device: client.metrics(model) for device, client in self._clients.items()}
        return {device: found for device, found in judged.items() if found}

    def personal(self) -> dict[str, F32]:
        own = {device: client.personal() for device, client in self._clients.items()}
        return {device: v for device, v in own.items() if v is not None}

    def close(self) -> None:
        pass


def enlist(
    plan: Plan,
    clients: Clients,
    kinds: Mapping[str, Kind],
    *,
    seed: int,
    holdout: float | Clients,
    controls: Mapping[str, I64],
) -> dict[str, Enlisted]:
    """Hold each client's data against the plan, and name it. Raises ``DataError``."""
    found = {}
    for device, samples in clients.items():
        data, held = checked(plan, check_id("client", device), samples, holdout)
        found[device] = Enlisted(
            kinds[device], data, held, nonce_of(seed, device), controls.get(device)
        )
    return found


def nonce_of(seed: int, device: str) -> bytes:
    """The name of a client's installation, 16 bytes."""
    return hashlib.sha256(f"{seed}/{device}".encode()).digest()[:16]
