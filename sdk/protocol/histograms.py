"""What an announcement may ask of devices' data, and the answer of a device that shares it."""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta

from kellet.sdk.protocol.limits import MAX_BINS

__all__ = ["Histogram", "Question"]

_Bytes8 = Annotated[bytes, Meta(min_length=8, max_length=8)]
_Column = Annotated[int, Meta(ge=0, lt=2**31)]


class Question(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, dict=True):
    """What is to be counted: samples by label, and by the value of some columns of the input.

    ``classes``: labels are 0 .. classes - 1. ``columns``: places on the first axis of an example;
    a sample's value there is the mean over the other axes. ``edges``: of each column, ascending:
    bins are below the first, from one to the next, and from the last on.
    """

    classes: Annotated[int, Meta(ge=2, le=MAX_BINS)]
    columns: Annotated[tuple[_Column, ...], Meta(max_length=MAX_BINS)] = ()
    edges: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.edges) or len(set(self.columns)) < len(self.columns):
            raise ValueError("edges belong to one column each")
        for edges in self.edges:
            rising = all(a < b for a, b in itertools.pairwise(edges))
            if not edges or not rising or not all(map(math.isfinite, edges)):
                raise ValueError("edges are finite and ascend, one at least")
        if self.bins > MAX_BINS:
            raise ValueError(f"{self.bins} bins, of which a histogram has {MAX_BINS} at most")

    @property
    def groups(self) -> tuple[int, ...]:
        """The bins of the labels, then of each column."""
        return (self.classes, *(len(edges) + 1 for edges in self.edges))

    @property
    def bins(self) -> int:
        """All of them."""
        return sum(self.groups)

    @property
    def labels(self) -> Question:
        """The part of it that is about labels."""
        return Question(classes=self.classes)

    @cached_property
    def name(self) -> bytes:
        """8 bytes by which an answer says to what it is one."""
        edges = [[float(edge) for edge in column] for column in self.edges]
        said = msgspec.msgpack.encode([self.classes, self.columns, edges])
        return hashlib.sha256(said).digest()[:8]


class Histogram(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A device's answer to a question, or to the part of it that is about labels.

    ``shares``: float32, little-endian, each group of bins as shares that sum to 1. ``epsilon``:
    of the noise that the device added before, None for none.
    """

    question: _Bytes8
    shares: Annotated[bytes, Meta(min_length=8, max_length=4 * MAX_BINS)]
    epsilon: Annotated[float, Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        if len(self.shares) % 4:
            raise ValueError("shares are float32")
        if not all(0 <= share <= 1 for (share,) in struct.iter_unpack("<f", self.shares)):
            raise ValueError("shares are between 0 and 1")
