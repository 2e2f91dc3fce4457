"""What runs on a device.

>>> from kellet.sdk import Device, Plan, algorithms
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kellet.sdk import algorithms
    from kellet.sdk.plan import Plan
    from kellet.sdk.runner import Device

__all__ = ["Device", "Plan", "algorithms"]

# Imported when they are first asked for, so that the command answers `--help` at once on a Pi.
_HOMES = {"Device": "kellet.sdk.runner", "Plan": "kellet.sdk.plan"}


def __getattr__(name: str) -> Any:
    if name == "algorithms":
        return import_module("kellet.sdk.algorithms")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
