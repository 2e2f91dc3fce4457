"""What a plan says about itself, and the layout of its parameters.

The parameters of a plan are one float32 vector. Tensors lie in it without gaps
in the order of ``Manifest.tensors``: first those that are trained, then the
float buffers that a step updates (running statistics), then the frozen ones::

    |<------------- n_params ------------->|
    |<------- n_update ------->|
    |<- n_train ->|
    | train ...   | buffer ... | frozen ... |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from kellet.sdk.errors import PlanError

__all__ = [
    "FORMAT",
    "InputSpec",
    "LabelSpec",
    "Manifest",
    "TensorSpec",
    "Variant",
    "decode_manifest",
    "encode_manifest",
    "layout",
]

FORMAT: Final = 2
MAX_PARAMETERS: Final = 1 << 27
RESERVED_NAMES: Final = frozenset({"batch", "labels", "loss", "scores"})
_ROLES: Final = ("train", "buffer", "frozen")

Text = Annotated[str, Meta(max_length=4096)]
TENSOR_NAME: Final = r"[A-Za-z0-9_.\-]{1,200}"
Name = Annotated[str, Meta(pattern=f"^{TENSOR_NAME}$")]
Dimension = Annotated[int, Meta(ge=1, le=MAX_PARAMETERS)]
Shape = Annotated[tuple[Dimension, ...], Meta(max_length=8)]
Count = Annotated[int, Meta(ge=0, le=MAX_PARAMETERS)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
Memory = Annotated[dict[Annotated[int, Meta(ge=1)], Bytes], Meta(max_length=64)]
Scheme = Annotated[str, Meta(pattern=r"^[a-z0-9.+]{1,32}/[0-9]{1,3}$")]


class TensorSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of the flat vector.

    ``offset`` counts float32 elements. ``aggregate`` says what the server does
    with the tensor when it averages: "mean", or "local" for statistics that
    each device keeps to itself.
    """

    name: Name
    shape: Shape
    offset: Count
    role: Literal["train", "buffer", "frozen"]
    aggregate: Literal["mean", "local"] = "mean"

    @property
    def size(self) -> int:
        """Elements of the tensor."""
        return math.prod(self.shape)


class InputSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One example: ``shape`` without the batch axis, and what the numbers mean.

    ``columns`` names the entries of the first axis, or is empty. Values
    outside ``low .. high`` are refused where these are given; an integer input
    that indexes an embedding needs them.
    """

    shape: Shape
    dtype: Literal["float32", "int64"] = "float32"
    unit: Text = ""
    columns: Annotated[tuple[Text, ...], Meta(max_length=10_000)] = ()
    low: float | None = None
    high: float | None = None


class LabelSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One label: its shape, its dtype and, for a classifier, its classes.

    Classes are the integers ``0 .. classes - 1``. ``classes`` is None where a
    custom loss gives the labels another meaning.
    """

    classes: Annotated[int, Meta(ge=2, le=1_000_000)] | None = None
    names: Annotated[tuple[Text, ...], Meta(max_length=10_000)] = ()
    dtype: Literal["int64", "float32"] = "int64"
    shape: Shape = ()
    unit: Text = ""


class Variant(Struct, frozen=True, forbid_unknown_fields=True):
    """A step graph for weights that are held in another way.

    ``scheme`` is the versioned name (`kellet.sdk.plan.schemes`); ``memory`` as
    that of the manifest: weights that are decoded on the way are activations,
    int8 weights, scales and gradients are not counted.
    """

    scheme: Scheme
    memory: Memory

    def peak_bytes(self, batch_size: int) -> int:
        """Return the peak bytes of a step's activations, as `Manifest.peak_bytes`."""
        return _peak_bytes(self.memory, batch_size)


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a plan says about itself.

    ``memory`` maps a batch size to the peak bytes of activations during a step
    of that size, parameters and gradients not counted. ``variants`` are the
    step graphs that the plan holds beside the float32 one.
    """

    format: int
    name: Name
    input: InputSpec
    labels: LabelSpec
    loss: Literal["cross_entropy", "custom"]
    tensors: Annotated[tuple[TensorSpec, ...], Meta(min_length=1, max_length=10_000)]
    memory: Memory
    opset: Annotated[int, Meta(ge=1, le=1000)]
    min_onnxruntime: Annotated[str, Meta(pattern=r"^\d{1,4}\.\d{1,4}(\.\d{1,4})?$")]
    variants: Annotated[tuple[Variant, ...], Meta(max_length=16)] = ()
    licence: Text = ""
    author: Text = ""
    description: Text = ""

    @property
    def n_train(self) -> int:
        """Elements that are trained."""
        return self._count("train")

    @property
    def n_update(self) -> int:
        """Elements that are trained or updated by a step."""
        return self._count("train") + self._count("buffer")

    @property
    def n_params(self) -> int:
        """Elements of the whole vector."""
        return sum(tensor.size for tensor in self.tensors)

    def peak_bytes(self, batch_size: int) -> int:
        """Return the peak bytes of a step's activations at ``batch_size``.

        Between and beyond the measured sizes the nearest two are extended
        linearly, which is what activations do. 0 where nothing was measured.
        """
        return _peak_bytes(self.memory, batch_size)

    def _count(self, role: str) -> int:
        return sum(tensor.size for tensor in self.tensors if tensor.role == role)


def _peak_bytes(memory: dict[int, int], batch_size: int) -> int:
    known = sorted(memory.items())
    if not known:
        return 0
    if len(known) == 1:
        size, peak = known[0]
        return math.ceil(peak * max(batch_size / size, 1.0))
    upper = next((i for i, (size, _) in enumerate(known) if size >= batch_size), len(known))
    upper = min(max(upper, 1), len(known) - 1)
    (size_0, peak_0), (size_1, peak_1) = known[upper - 1], known[upper]
    slope = (peak_1 - peak_0) / (size_1 - size_0)
    return max(0, math.ceil(peak_0 + slope * (batch_size - size_0)))


_Kind = TypeVar("_Kind")


def _convert(fields: object, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise PlanError(
            "the plan cannot be described", why=str(error), repair="correct what it names"
        ) from None


class _Head(Struct):
    format: int


def layout(tensors: Sequence[tuple[str, tuple[int, ...], str, str]]) -> tuple[TensorSpec, ...]:
    """Place tensors of (name, shape, role, aggregate) in the flat vector.

    Within a role the order is kept. Raises ``PlanError``.
    """
    placed: list[TensorSpec] = []
    offset = 0
    for wanted in _ROLES:
        for name, shape, role, aggregate in tensors:
            if role == wanted:
                fields = {"name": name, "shape": shape, "offset": offset, "role": role}
                spec = _convert({**fields, "aggregate": aggregate}, TensorSpec)
                placed.append(spec)
                offset += spec.size
    return tuple(placed)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the one encoding of ``manifest``, after checking it."""
    # A round trip first: it makes 0.0 of a 0 that was given for a float.
    read = _convert(msgspec.to_builtins(manifest), Manifest)
    encoded = msgspec.msgpack.encode(read)
    decode_manifest(encoded)
    return encoded


def decode_manifest(raw: bytes | memoryview) -> Manifest:
    """Read a manifest. Raises ``PlanError`` unless every byte of it is right."""
    try:
        version = msgspec.msgpack.decode(raw, type=_Head).format
        if version != FORMAT:
            raise PlanError(
                f"the plan has format {version}",
                why=f"this Kellet reads format {FORMAT}",
                repair="update Kellet" if version > FORMAT else "export the plan again",
            )
        manifest = msgspec.msgpack.decode(raw, type=Manifest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _unreadable(str(error) or type(error).__name__) from None
    # One encoding per content: no repeated keys, no padding, nothing after the end.
    if msgspec.msgpack.encode(manifest) != raw:
        raise _unreadable("it is not encoded the one way that Kellet writes")
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    offset, rank = 0, 0
    names: set[str] = set()
    for tensor in manifest.tensors:
        if tensor.name in names:
            raise _unreadable(f"two tensors are called {tensor.name!r}")
        if tensor.name in RESERVED_NAMES:
            raise _unreadable(f"a tensor is called {tensor.name!r}, which names a graph input")
        if tensor.offset != offset:
            raise _unreadable(f"{tensor.name!r} lies at {tensor.offset} instead of {offset}")
        if _ROLES.index(tensor.role) < rank:
            raise _unreadable(f"{tensor.name!r} ({tensor.role}) comes too late in the vector")
        names.add(tensor.name)
        offset += tensor.size
        rank = _ROLES.index(tensor.role)
        if offset > MAX_PARAMETERS:
            raise _unreadable(f"more than {MAX_PARAMETERS} parameters")
    if manifest.n_train == 0:
        raise _unreadable("no tensor is trained")
    schemes = [variant.scheme for variant in manifest.variants]
    if len({*schemes, "f32/1"}) != len(schemes) + 1:
        raise _unreadable("its variants name a scheme twice, or float32's")
    labels = manifest.labels
    plain = labels.classes is not None and labels.dtype == "int64" and not labels.shape
    if manifest.loss == "cross_entropy" and not plain:
        raise _unreadable("cross-entropy needs one int64 class a row, and their number")
    if labels.names and labels.classes != len(labels.names):
        raise _unreadable(f"{labels.classes} classes and {len(labels.names)} names")
    columns, shape = manifest.input.columns, manifest.input.shape
    if columns and (not shape or len(columns) != shape[0]):
        raise _unreadable(f"{len(columns)} columns for an input of shape {shape}")


def _unreadable(why: str) -> PlanError:
    return PlanError("the plan's manifest is wrong", why=why, repair="export the plan again")
