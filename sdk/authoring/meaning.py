"""Whether what an author says about inputs and labels agrees with the model."""

from __future__ import annotations

import math
import re

from kellet.sdk.errors import UsageError
from kellet.sdk.plan import InputSpec, LabelSpec
from kellet.sdk.plan.manifest import TENSOR_NAME

__all__ = ["check_meaning", "check_name"]


def check_name(name: str) -> None:
    """Raise ``UsageError`` unless a plan can be called ``name``."""
    if not re.fullmatch(TENSOR_NAME, name):
        raise UsageError(
            f"a plan cannot be called {name!r}",
            why="a name has 1 to 200 of A-Z a-z 0-9 _ . -",
            repair="give another name",
        )


def check_meaning(given: InputSpec, labels: LabelSpec) -> None:
    """Raise ``UsageError`` for names in a wrong number and for bounds that nothing meets."""
    if given.columns and (not given.shape or len(given.columns) != given.shape[0]):
        raise UsageError(
            f"{len(given.columns)} names in columns",
            why=f"an example has the shape {list(given.shape)}, and columns name its first axis",
            repair=f"give {given.shape[0]} names, or none" if given.shape else "give none",
        )
    if labels.names and len(labels.names) != labels.classes:
        raise UsageError(
            f"{len(labels.names)} names of labels",
            why=f"the model tells {labels.classes} classes apart",
            repair=f"give {labels.classes} names, or none",
        )
    for name, bound in (("low", given.low), ("high", given.high)):
        if bound is not None and not math.isfinite(bound):
            raise UsageError(f"{name} = {bound}", why="it must be finite", repair="leave it out")
    if given.low is not None and given.high is not None and given.low > given.high:
        raise UsageError(
            f"low = {given.low:g} is above high = {given.high:g}",
            why="no input could lie between them",
            repair="exchange them",
        )
