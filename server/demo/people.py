"""The demo's test set, as a function that ``kellet server --test`` can name.

The users are those in ``KELLET_DATA_USERS``, as on the devices.
"""

from __future__ import annotations

from kellet.sdk import tasks
from kellet.sdk.tasks._task import Arrays

__all__ = ["har", "wisdm"]


def wisdm() -> Arrays:
    """(x, y) of the WISDM users that are kept for the test."""
    return tasks.wisdm("test")


def har() -> Arrays:
    """(x, y) of the HAR users that are kept for the test."""
    return tasks.har("test")
