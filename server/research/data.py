"""What a fleet's data comes from: given clients, a pool to share out, or people that we know."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kellet.sdk import tasks
from kellet.sdk.errors import DataError, UsageError
from kellet.sdk.holdout import split_holdout
from kellet.sdk.trainer import Data
from kellet.server.partition import clients_of

if TYPE_CHECKING:
    from kellet.sdk.plan import Plan
    from kellet.server.research.partitions import Partition

__all__ = ["Given", "People", "Pool", "Population", "Source"]

Arrays = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Population:
    """A fleet's data, checked against the plan.

    ``clients``: what each trains on. ``judged``: what each client's accuracy is of: its
    held-out samples, or where none are ``held_out`` those that it trains on. ``test``: what
    the model is judged by as a whole, or None.
    """

    clients: dict[str, Arrays]
    judged: dict[str, Arrays]
    test: Arrays | None
    held_out: bool = False

    @classmethod
    def of(
        cls,
        plan: Plan,
        clients: Mapping[str, tuple[ArrayLike, ArrayLike]],
        test: tuple[ArrayLike, ArrayLike] | None = None,
        holdout: float = 0.0,
    ) -> Population:
        """Check the data, and hold ``floor(holdout * n)`` of each client's n samples out.

        They are those that ``kellet run --holdout`` holds out on a device of that name.
        Without a ``test`` all of them together are it. Raises ``DataError``.
        """
        training: dict[str, Arrays] = {}
        judged: dict[str, Arrays] = {}
        for name, (x, y) in clients.items():
            try:
                whole = Data(*plan.check_data(x, y))
                kept, out = split_holdout(whole, holdout, name)
            except DataError as error:
                what = f"client {name!r}: {error.what}"
                raise DataError(what, why=error.why, repair=error.repair) from None
            training[name] = (kept.x, kept.y)
            judged[name] = (out.x, out.y) if out is not None else training[name]
        if test is not None:
            return cls(training, judged, plan.check_data(*test), holdout > 0)
        if not holdout:
            return cls(training, judged, None)
        parts = list(judged.values())
        whole_x, whole_y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        return cls(training, judged, (whole_x, whole_y), held_out=True)


class Source(Protocol):
    """Where a run's clients come from. It can be pickled."""

    def fleet(self, partition: Partition | None, clients: int | None, seed: int) -> Fleet:
        """The clients and the test set of one seed. Raises ``UsageError``, ``DataError``."""

    def digest(self) -> str:
        """Hex digits that change where the data does."""


@dataclass(frozen=True)
class Fleet:
    """Clients as a source makes them, before they are checked, and a test set or None."""

    clients: Mapping[str, tuple[ArrayLike, ArrayLike]]
    test: tuple[ArrayLike, ArrayLike] | None = None


@dataclass(frozen=True)
class Given:
    """Clients that are there already: id -> (x, y)."""

    clients: Mapping[str, tuple[ArrayLike, ArrayLike]]
    test: tuple[ArrayLike, ArrayLike] | None = None

    def fleet(self, partition: Partition | None, clients: int | None, seed: int) -> Fleet:
        if partition is not None:
            raise UsageError(
                f"partition = {partition}",
                why="the data is shared out among clients already",
                repair="give a pool of samples, or leave it out",
            )
        if clients is not None:
            raise UsageError(
                f"clients = {clients}", why="the data says which there are", repair="leave it out"
            )
        return Fleet(self.clients, self.test)

    def digest(self) -> str:
        pairs = (np.asarray(a) for name in self.clients for a in self.clients[name])
        test = map(np.asarray, self.test or ())
        return _digest([*map(str, self.clients)], [*pairs, *test])


@dataclass(frozen=True)
class Pool:
    """Samples to share out: x [n, *input], y int [n].

    ``owners`` [n]: whose each sample is, for a natural partition. ``name`` is for people.
    Raises ``DataError`` where the lengths differ.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    owners: NDArray[Any] | None = None
    test: tuple[ArrayLike, ArrayLike] | None = None
    name: str = field(default="the pool", compare=False)

    def __post_init__(self) -> None:
        for part in ("x", "y", "owners"):
            if getattr(self, part) is not None:
                object.__setattr__(self, part, np.asarray(getattr(self, part)))
        lengths = [len(a) if a.ndim else 0 for a in (self.x, self.y, self.owners) if a is not None]
        if len(set(lengths)) != 1 or lengths[0] == 0:
            raise DataError(
                f"{self.name} has {' and '.join(map(str, lengths))} samples",
                why="x, y and the owners have one entry a sample, and there is one at least",
                repair="return (x, y) or (x, y, owners) of equal length",
            )

    @classmethod
    def of(cls, arrays: Sequence[ArrayLike], test: Any = None, name: str = "the pool") -> Pool:
        """The pool of (x, y) or (x, y, owners). Raises ``DataError``."""
        if not isinstance(arrays, (tuple, list)) or len(arrays) not in (2, 3):
            given = type(arrays).__name__
            size = f" of {len(arrays)}" if isinstance(arrays, (tuple, list)) else ""
            raise DataError(
                f"{name} is a {given}{size}",
                why="a pool is (x, y), or (x, y, owners)",
                repair="return x, y: [n, *input] and int [n]",
            )
        x, y, *owners = map(np.asarray, arrays)
        return cls(x, y, owners[0] if owners else None, test, name=name)

    def fleet(self, partition: Partition | None, clients: int | None, seed: int) -> Fleet:
        if partition is None:
            raise UsageError(
                f"{self.name} is not shared out",
                why="no partition is given",
                repair="name one: dirichlet:0.5, similarity:10, by-label:2, quantity:0.5, natural",
            )
        return Fleet(clients_of(partition.of(self, seed), self.x, self.y), self.test)

    def digest(self) -> str:
        owners = [] if self.owners is None else [self.owners]
        return _digest([], [self.x, self.y, *owners, *map(np.asarray, self.test or ())])


@dataclass(frozen=True)
class People:
    """The people of a built-in task. Six of them, by the seed, are the test.

    Without a partition the others are shared among ``clients`` devices, as the demo does it;
    with one, their windows are the pool and they its owners. ``test`` replaces the six.
    """

    task: tasks.Task
    test: tuple[ArrayLike, ArrayLike] | None = None

    def fleet(self, partition: Partition | None, clients: int | None, seed: int) -> Fleet:
        if partition is None:
            people = tasks.split(self.task, 8 if clients is None else clients, seed)
            shares = {name: self.task.load(users) for name, users in people.devices.items()}
            return Fleet(shares, self.test or self.task.load(people.test_users))
        people = tasks.split(self.task, 1, seed)
        (users,) = people.devices.values()
        parts = [self.task.load_user(user) for user in users]
        pool = Pool(
            np.concatenate([x for x, _ in parts]),
            np.concatenate([y for _, y in parts]),
            np.repeat(users, [len(y) for _, y in parts]),
            self.test or self.task.load(people.test_users),
            name=f"the task {self.task.name}",
        )
        return pool.fleet(partition, clients, seed)

    def digest(self) -> str:
        parts = [a for user in self.task.users for a in self.task.load_user(user)]
        return _digest([self.task.name], [*parts, *map(np.asarray, self.test or ())])


def _digest(words: Iterable[str], arrays: Iterable[NDArray[Any]]) -> str:
    sha = hashlib.sha256("\0".join(words).encode())
    for array in arrays:
        sha.update(f"{array.dtype.str}{array.shape}".encode())
        if array.dtype.hasobject:
            sha.update("\0".join(map(str, array.ravel())).encode())
        else:
            sha.update(array.tobytes())
    return sha.hexdigest()[:16]
