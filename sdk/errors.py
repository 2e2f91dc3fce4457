"""Every error that Kellet raises on purpose.

Each one says what happened, why, and the repair, and carries the exit code of
the command that it ends::

    KelletError                   1
    +-- UsageError                2   a wrong argument, option or setting
    |   +-- ExtraMissing          2   an optional package is not installed
    +-- DataError                 3   the user's data does not fit the plan
    +-- PlanError                 4   a plan that is unknown, damaged or unfit
    |   +-- ExportRefused         4   a model that cannot become a plan
    +-- LinkError                 5   the broker cannot be reached or refuses us
    +-- ProtocolError             6   a message that does not follow the protocol
    +-- StorageError              7   the disk refuses, or holds something foreign
    +-- FleetError                8   the fleet's state does not allow it
"""

from __future__ import annotations

__all__ = [
    "DataError",
    "ExportRefused",
    "ExtraMissing",
    "FleetError",
    "KelletError",
    "LinkError",
    "PlanError",
    "ProtocolError",
    "StorageError",
    "UsageError",
    "require",
]


class KelletError(Exception):
    """What happened, why, and how to repair it.

    ``str(error)`` is one paragraph: the fault, the cause after a colon, and the
    repair after a dash.
    """

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", repair: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.repair = repair

    def __str__(self) -> str:
        text = self.what
        if self.why:
            text += f": {self.why}"
        if self.repair:
            text += f" - {self.repair}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.why, self.repair))


def _rebuild(kind: type[KelletError], what: str, why: str, repair: str) -> KelletError:
    return kind(what, why=why, repair=repair)


class UsageError(KelletError):
    """A wrong argument, option or setting."""

    exit_code = 2


class ExtraMissing(UsageError):
    """A part of Kellet needs a package that is not installed."""

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(
            f"this needs the package {package!r}",
            why="it is not installed",
            repair=f'pip install "kellet[{extra}]"',
        )
        self.extra = extra
        self.package = package

    def __reduce__(self) -> tuple[object, ...]:
        return (ExtraMissing, (self.extra, self.package))


class DataError(KelletError):
    """The user's data does not fit the plan."""

    exit_code = 3


class PlanError(KelletError):
    """A plan that is unknown, damaged, or unfit for this device."""

    exit_code = 4


class ExportRefused(PlanError):
    """A model that cannot become a plan, with the reason."""


class LinkError(KelletError):
    """The broker cannot be reached, refuses the client, or cannot carry a message."""

    exit_code = 5


class ProtocolError(KelletError):
    """A message that does not follow the protocol."""

    exit_code = 6


class StorageError(KelletError):
    """The disk refuses a write, or holds something that is not ours."""

    exit_code = 7


class FleetError(KelletError):
    """The state of the fleet does not allow the operation."""

    exit_code = 8


def require(good: bool, name: str, value: object, wanted: str) -> None:
    """Raise ``UsageError`` unless ``good``: the setting ``name`` must be what is ``wanted``."""
    if not good:
        raise UsageError(f"{name} = {value!r}", why=f"it must be {wanted}", repair=f"change {name}")
