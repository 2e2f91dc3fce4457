"""What a state machine asks its driver to do. Machines themselves do no I/O on the link."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Effect", "Publish", "Report", "Subscribe", "Tick", "Unsubscribe"]


@dataclass(frozen=True, slots=True)
class Publish:
    """Hand this payload to the link."""

    topic: str
    payload: bytes
    retain: bool = False
    bulk: bool = False


@dataclass(frozen=True, slots=True)
class Subscribe:
    topic_filter: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    topic_filter: str


@dataclass(frozen=True, slots=True)
class Report:
    """Something a person or a log may want to know. ``kind`` is a stable word."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tick:
    """The event that tells a machine that time has passed.

    ``room``: bytes of parts that the link takes now; a machine makes no more.
    """

    room: int = 1 << 62


Effect = Publish | Subscribe | Unsubscribe | Report
