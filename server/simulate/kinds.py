"""What a simulation's clients can do, and which of them a round asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import ArrayLike

from kellet.sdk.errors import DataError, UsageError
from kellet.sdk.holdout import split_holdout
from kellet.sdk.plan import Plan
from kellet.sdk.plan.schemes import FLOAT32, SCHEMES, check_scheme
from kellet.sdk.protocol.vectors import CODECS, Codec
from kellet.sdk.releases import Sharing
from kellet.sdk.trainer import Data
from kellet.server.selection import Draw, Schedule, Selection, Uniform

__all__ = ["Clients", "Cohort", "Kind", "Manages", "checked", "kinds_of", "offers", "selection_of"]

Clients = Mapping[str, tuple[ArrayLike, ArrayLike]]
Cohort = int | Selection | Callable[[int, Sequence[str]], Collection[str]] | None
Manages = Callable[[int, str, int], int]
ALL = Sharing("labels+features")  # a simulation's data is its author's


@dataclass(frozen=True, slots=True)
class Kind:
    """What one client does: as a device's profile would say it.

    ``manages(round, client, planned)``: how many of the planned steps it has time for, all where
    that is None. Fewer are partial work, which counts; with none it gives the round up.
    ``sharing``: what it tells of its data where a selection asks.
    """

    scheme: str = FLOAT32
    codec: Codec = "f32"
    shift: Literal["f32", "int8"] = "f32"
    manages: Manages | None = None
    sharing: Sharing = ALL


def kinds_of(
    clients: Iterable[str],
    *,
    scheme: str | Mapping[str, str] = FLOAT32,
    shift: Literal["f32", "int8"] = "f32",
    uplink: Codec | Mapping[str, Codec] = "f32",
    manages: Manages | None = None,
    sharing: Sharing | Mapping[str, Sharing] = ALL,
) -> dict[str, Kind]:
    """Each client's kind. ``UsageError`` for an unknown client, scheme or codec."""
    known = list(clients)
    schemes = _each(known, "scheme", scheme, FLOAT32)
    codecs = _each(known, "uplink", uplink, "f32")
    told = _each(known, "sharing", sharing, Sharing())
    for codec in codecs.values():
        if codec not in CODECS:
            raise UsageError(f"uplink = {codec!r}", repair=f"choose one of {', '.join(CODECS)}")
    if shift not in ("f32", "int8"):
        raise UsageError(f"shift = {shift!r}", repair="choose f32 or int8")
    return {
        name: Kind(check_scheme(schemes[name]), codecs[name], shift, manages, told[name])
        for name in known
    }


def _each(known: list[str], what: str, given: Any, default: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        return dict.fromkeys(known, given)
    strangers = sorted(set(given) - set(known))
    if strangers:
        raise UsageError(
            f"{what} of unknown clients: {', '.join(strangers)}",
            repair="name the clients as their data does",
        )
    return {name: given.get(name, default) for name in known}


def offers(kinds: Iterable[Kind]) -> tuple[tuple[str, ...], tuple[Codec, ...]]:
    """The schemes and the codecs of delta_y that a fleet of these announces."""
    kinds = list(kinds)
    schemes = {kind.scheme for kind in kinds}
    codecs = {kind.codec for kind in kinds}
    return (
        tuple(name for name in SCHEMES if name in schemes),
        tuple(name for name in CODECS if name in codecs),
    )


def checked(
    plan: Plan,
    device: str,
    data: tuple[ArrayLike, ArrayLike],
    holdout: float | Clients = 0.0,
) -> tuple[Data, Data | None]:
    """A client's data, held against the plan: to train on, and what it holds out of it.

    ``holdout``: the share, held out as a device does it, or what each client has beside its
    data. ``DataError`` names the client.
    """
    try:
        if isinstance(holdout, Mapping):
            held = Data(*plan.check_data(*holdout[device])) if device in holdout else None
            return Data(*plan.check_data(*data)), held
        return split_holdout(Data(*plan.check_data(*data)), holdout, device)
    except DataError as error:
        what = f"client {device!r}: {error.what}"
        raise DataError(what, why=error.why, repair=error.repair) from None


def selection_of(cohort: Cohort, seed: int, clients: int) -> Selection:
    """Who is asked in each round."""
    if cohort is None:
        return Uniform(clients, seed)
    if callable(cohort):
        return Schedule(cohort)
    size = cohort.size if isinstance(cohort, Draw) else cohort
    if isinstance(size, int) and not 1 <= size <= clients:
        raise UsageError(
            f"cohort = {size}", why=f"there are {clients} clients", repair=f"use 1 to {clients}"
        )
    return Uniform(cohort, seed) if isinstance(cohort, int) else cohort
