"""Quantisation schemes: how a device holds a plan's weights while it trains them.

=================  ===========================================================
f32/1              float32, as the plan is exported
w8.row/1           int8 with one float32 scale a row (a tensor's first axis)
w8.block64/1       int8 with one scale for 64 elements, rows where 64 does not divide
w8.row+a8/1        as w8.row, and wide linear layers run forward in int8
=================  ===========================================================

Names are versioned: what a name means never changes, and plans, announcements
and updates carry it in full. A profile names families, such as "w8.row".

Resident, that is held in int8, is every trained or frozen tensor of two
dimensions or more. Vectors (biases, norms) and buffers stay float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kellet.kernels import row_layout
from kellet.sdk.errors import UsageError
from kellet.sdk.plan.manifest import Manifest, TensorSpec

__all__ = ["FLOAT32", "SCHEMES", "Int8Layout", "Int8Tensor", "check_scheme", "family"]

FLOAT32: Final = "f32/1"
# In the order in which a plan's file holds them.
SCHEMES: Final = (FLOAT32, "w8.row/1", "w8.block64/1", "w8.row+a8/1")
_BLOCK: Final = 64


def family(name: str) -> str:
    """Return a scheme's name without its version: "w8.row" of "w8.row/1"."""
    return check_scheme(name).partition("/")[0]


def check_scheme(name: str) -> str:
    """Return the versioned name of a scheme or of a family. Raises ``UsageError``."""
    for scheme in SCHEMES:
        if name in (scheme, scheme.partition("/")[0]):
            return scheme
    raise UsageError(
        f"there is no scheme {name!r}",
        why="a scheme says how weights are held while they are trained",
        repair=f"take one of: {', '.join(SCHEMES)}",
    )


@dataclass(frozen=True)
class Int8Tensor:
    """Where a resident tensor lies: as float32, and among the int8 values and scales."""

    tensor: TensorSpec
    shape: tuple[int, int]  # rows, their length
    values: slice
    scales: slice

    @property
    def flat(self) -> slice:
        """The tensor's place in the plan's flat vector."""
        return slice(self.tensor.offset, self.tensor.offset + self.tensor.size)


@dataclass(frozen=True)
class FloatTensor:
    """Where a tensor lies that stays float32: in the flat vector, and in ``rest``."""

    tensor: TensorSpec
    rest: slice

    @property
    def flat(self) -> slice:
        """The tensor's place in the plan's flat vector."""
        return slice(self.tensor.offset, self.tensor.offset + self.tensor.size)


@dataclass(frozen=True)
class Int8Layout:
    """How an int8 scheme lays out a plan. Made by `Int8Layout.of`.

    ``weights`` are the trained resident tensors, ``frozen`` the frozen ones,
    each in vectors of their own that begin at 0; ``rest`` is every other
    tensor. All are in the plan's order. Bytes of a device's state follow:
    ``n_weights + 4*n_scales`` for weights that are trained, and so on.
    """

    weights: tuple[Int8Tensor, ...]
    frozen: tuple[Int8Tensor, ...]
    rest: tuple[FloatTensor, ...]

    @classmethod
    def of(cls, manifest: Manifest, scheme: str) -> Int8Layout:
        """Lay out a plan for ``scheme``. Raises ``UsageError`` for float32's."""
        if check_scheme(scheme) == FLOAT32:
            raise UsageError(
                f"{FLOAT32} has no int8 layout",
                why="it holds the flat vector as it is",
                repair=f"take one of: {', '.join(SCHEMES[1:])}",
            )
        block = _BLOCK if family(scheme) == "w8.block64" else 0
        held: dict[str, list[Int8Tensor]] = {"train": [], "frozen": []}
        ends = {"train": (0, 0), "frozen": (0, 0)}
        rest: list[FloatTensor] = []
        floats = 0
        for tensor in manifest.tensors:
            if not is_resident(tensor):
                rest.append(FloatTensor(tensor, slice(floats, floats + tensor.size)))
                floats += tensor.size
                continue
            rows = tensor.shape[0]
            if block and tensor.size % block == 0:
                rows = tensor.size // block
            value, scale = ends[tensor.role]
            ends[tensor.role] = (value + tensor.size, scale + rows)
            held[tensor.role].append(
                Int8Tensor(
                    tensor,
                    (rows, tensor.size // rows),
                    slice(value, value + tensor.size),
                    slice(scale, scale + rows),
                )
            )
        return cls(tuple(held["train"]), tuple(held["frozen"]), tuple(rest))

    @property
    def n_weights(self) -> int:
        """Elements that are trained in int8."""
        return sum(held.tensor.size for held in self.weights)

    @property
    def n_scales(self) -> int:
        """Rows of the elements that are trained in int8."""
        return sum(held.shape[0] for held in self.weights)

    @property
    def n_rest(self) -> int:
        """Elements that stay float32: trained, buffers, frozen."""
        return sum(held.tensor.size for held in self.rest)

    @property
    def n_rest_train(self) -> int:
        """Elements that are trained in float32; they come first."""
        return sum(held.tensor.size for held in self.rest if held.tensor.role == "train")

    @property
    def n_rest_update(self) -> int:
        """Elements that are trained, or updated by a step, in float32; they come first."""
        return sum(held.tensor.size for held in self.rest if held.tensor.role != "frozen")

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of the trained int8 elements, as the kernels want them."""
        return row_layout(held.shape for held in self.weights)

    @property
    def state_bytes(self) -> int:
        """Bytes of all parameters as held, without gradients."""
        frozen = sum(held.tensor.size + 4 * held.shape[0] for held in self.frozen)
        return self.n_weights + 4 * self.n_scales + frozen + 4 * self.n_rest


def is_resident(tensor: TensorSpec) -> bool:
    """Whether an int8 scheme holds ``tensor`` in int8."""
    return tensor.role != "buffer" and len(tensor.shape) >= 2
