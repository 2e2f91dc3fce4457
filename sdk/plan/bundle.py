"""The entries of a plan's file, written and read.

=================  ==========================================================
manifest.msgpack   `kellet.sdk.plan.manifest.Manifest`
step.onnx          (batch, labels, tensors...) -> (loss, gradients..., buffers...)
eval.onnx          (batch, tensors...) -> scores
initial.f32        the flat vector, little-endian float32
selftest.msgpack   `SelfTest`
step.SCHEME.onnx   a variant's step, with its own inputs for int8 tensors
=================  ==========================================================
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from kellet.sdk.errors import PlanError
from kellet.sdk.plan.container import pack, unpack
from kellet.sdk.plan.manifest import (
    Manifest,
    Scheme,
    Shape,
    decode_manifest,
    encode_manifest,
)
from kellet.sdk.plan.onnx_wire import GraphFacts, inspect_graph
from kellet.sdk.plan.operators import MAX_IR_VERSION, MAX_OPSET, MIN_OPSET, OPERATORS
from kellet.sdk.plan.schemes import FLOAT32, SCHEMES, is_resident

__all__ = [
    "Contents",
    "SelfTest",
    "TensorData",
    "VariantTest",
    "read_bundle",
    "step_inputs",
    "step_outputs",
    "write_contents",
]

_MIB = 1 << 20
_LIMITS: Final = {
    "manifest.msgpack": 4 * _MIB,
    "step.onnx": 256 * _MIB,
    "eval.onnx": 256 * _MIB,
    "initial.f32": 512 * _MIB,
    "selftest.msgpack": 64 * _MIB,
}


class TensorData(Struct, frozen=True, forbid_unknown_fields=True):
    """An array as little-endian bytes."""

    dtype: Literal["float32", "int64"]
    shape: Shape
    data: bytes

    @classmethod
    def of(cls, array: np.ndarray) -> TensorData:
        """Pack a float32 or int64 array."""
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return msgspec.convert(
            {"dtype": array.dtype.name, "shape": array.shape, "data": little.tobytes()}, cls
        )

    def array(self) -> np.ndarray:
        """Unpack. Raises ``PlanError`` where bytes and shape disagree."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        count = int(np.prod(self.shape, dtype=object))
        if len(self.data) != count * dtype.itemsize:
            raise _wrong_self_test(f"{len(self.data)} bytes for the shape {self.shape}")
        return np.frombuffer(self.data, dtype).reshape(self.shape).astype(self.dtype)


Samples = Annotated[tuple[float, ...], Meta(max_length=4096)]


class VariantTest(Struct, frozen=True, forbid_unknown_fields=True):
    """What a variant must answer to the self-test's batch.

    Its weights are the initial ones, quantised with the seed 0. ``gradient``
    is at the places of the plan's own test.
    """

    scheme: Scheme
    loss: float
    gradient: Samples


class SelfTest(Struct, frozen=True, forbid_unknown_fields=True):
    """A fixed batch and what the plan must answer to it at its initial parameters."""

    batch: TensorData
    labels: TensorData
    loss: float
    gradient_at: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=4096)]
    gradient: Samples
    scores: TensorData
    variants: Annotated[tuple[VariantTest, ...], Meta(max_length=16)] = ()


@dataclass(frozen=True)
class Contents:
    """A bundle taken apart. The graphs, ``initial`` and ``test`` are views of the file.

    ``variants`` are the step graphs by scheme, of the schemes that are known here.
    """

    manifest: Manifest
    step: memoryview
    eval: memoryview
    initial: memoryview
    test: memoryview
    variants: Mapping[str, memoryview]

    @property
    def self_test(self) -> SelfTest:
        """Read when it is asked for: its batch may be as large as the parameters."""
        return msgspec.msgpack.decode(self.test, type=SelfTest)


def write_contents(
    manifest: Manifest,
    step: bytes | memoryview,
    eval_: bytes | memoryview,
    initial: np.ndarray,
    self_test: SelfTest,
    *,
    variants: Mapping[str, bytes] | None = None,
) -> bytes:
    """Return the file of a plan, after reading it back.

    ``variants``: the step graph of each scheme that the manifest names.
    """
    graphs = variants or {}
    raw = pack(
        {
            "manifest.msgpack": encode_manifest(manifest),
            "step.onnx": bytes(step),
            "eval.onnx": bytes(eval_),
            "initial.f32": np.ascontiguousarray(initial, "<f4").tobytes(),
            "selftest.msgpack": msgspec.msgpack.encode(self_test),
            **{_entry(v.scheme): graphs[v.scheme] for v in manifest.variants},
        }
    )
    read_bundle(raw)
    return raw


def read_bundle(raw: bytes | mmap.mmap, digest: bytes | None = None) -> Contents:
    """Take the file of a plan apart and check every part against the others.

    Raises ``PlanError``. With ``digest``, the SHA-256 of the file is checked first.
    """
    if digest is not None and hashlib.sha256(raw).digest() != digest:
        raise PlanError(
            f"the plan is not {digest.hex()}",
            why=f"its SHA-256 is {hashlib.sha256(raw).hexdigest()}",
            repair="fetch the plan again, or correct the digest",
        )
    entries = unpack(raw, _LIMITS, _variant_limits)
    manifest = decode_manifest(entries["manifest.msgpack"])
    if len(entries["initial.f32"]) != 4 * manifest.n_params:
        raise PlanError(
            "the plan's initial parameters are wrong",
            why=f"{manifest.n_params} are declared, the file has "
            f"{len(entries['initial.f32'])} bytes of them",
            repair="export the plan again",
        )
    if not np.isfinite(np.frombuffer(entries["initial.f32"], "<f4")).all():
        raise PlanError(
            "the plan's initial parameters are wrong",
            why="some are NaN or infinite",
            repair="export the plan again from a sound model",
        )
    variants = {
        variant.scheme: entries[_entry(variant.scheme)]
        for variant in manifest.variants
        if variant.scheme in SCHEMES  # a newer Kellet may have more
    }
    _check_graphs(manifest, entries["step.onnx"], entries["eval.onnx"], variants)
    _check_self_test(entries["selftest.msgpack"], manifest)
    return Contents(
        manifest,
        entries["step.onnx"],
        entries["eval.onnx"],
        entries["initial.f32"],
        entries["selftest.msgpack"],
        variants,
    )


def _entry(scheme: str) -> str:
    return f"step.{scheme.replace('/', '-')}.onnx"


def _variant_limits(entries: Mapping[str, memoryview]) -> dict[str, int]:
    manifest = decode_manifest(entries["manifest.msgpack"])
    return {_entry(variant.scheme): _LIMITS["step.onnx"] for variant in manifest.variants}


def step_inputs(manifest: Manifest, scheme: str) -> tuple[str, ...]:
    """Names of a variant's inputs, in order: an int8 tensor has its values and its scales."""
    names = ["batch", "labels"]
    for tensor in manifest.tensors:
        int8 = scheme != FLOAT32 and is_resident(tensor)
        names += [f"int8::{tensor.name}", f"scales::{tensor.name}"] if int8 else [tensor.name]
    return tuple(names)


def step_outputs(manifest: Manifest) -> tuple[str, ...]:
    """Names of the step graph's outputs, in order."""
    gradients = [f"grad::{t.name}" for t in manifest.tensors if t.role == "train"]
    buffers = [f"buffer::{t.name}" for t in manifest.tensors if t.role == "buffer"]
    return ("loss", *gradients, *buffers)


def _check_graphs(
    manifest: Manifest,
    step: memoryview,
    eval_: memoryview,
    variants: Mapping[str, memoryview],
) -> None:
    outputs = step_outputs(manifest)
    _check_graph("step", step, manifest, step_inputs(manifest, FLOAT32), outputs)
    tensors = tuple(tensor.name for tensor in manifest.tensors)
    _check_graph("eval", eval_, manifest, ("batch", *tensors), ("scores",))
    for scheme, graph in variants.items():
        _check_graph(scheme, graph, manifest, step_inputs(manifest, scheme), outputs)


def _check_graph(
    which: str,
    graph: memoryview,
    manifest: Manifest,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
) -> None:
    facts = inspect_graph(graph)
    why = _disagreement(facts, manifest, inputs, outputs)
    if why:
        raise PlanError(
            f"the plan's {which} graph is refused", why=why, repair="export the plan again"
        )


def _disagreement(
    facts: GraphFacts, manifest: Manifest, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> str:
    unknown = sorted(facts.operators - OPERATORS)
    if unknown:
        return f"operators that are not known to run everywhere: {', '.join(unknown)}"
    if facts.opset != manifest.opset or not MIN_OPSET <= facts.opset <= MAX_OPSET:
        return (
            f"it uses opset {facts.opset}, the manifest says {manifest.opset}, "
            f"and {MIN_OPSET} to {MAX_OPSET} are read"
        )
    if facts.ir_version > MAX_IR_VERSION:
        return f"its IR version {facts.ir_version} is above {MAX_IR_VERSION}"
    if facts.inputs != inputs:
        return _difference("input", facts.inputs, inputs)
    if facts.outputs != outputs:
        return _difference("output", facts.outputs, outputs)
    return ""


def _difference(what: str, found: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    missing = [name for name in wanted if name not in found]
    surplus = [name for name in found if name not in wanted]
    if missing:
        return f"the {what} {missing[0]!r} is missing"
    if surplus:
        return f"the {what} {surplus[0]!r} is not in the manifest"
    return f"its {what}s are not in the manifest's order"


def _check_self_test(raw: memoryview, manifest: Manifest) -> None:
    try:
        self_test = msgspec.msgpack.decode(raw, type=SelfTest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _wrong_self_test(str(error) or type(error).__name__) from None
    if msgspec.msgpack.encode(self_test) != raw:
        raise _wrong_self_test("it is not encoded the one way that Kellet writes")
    batch, labels = self_test.batch, self_test.labels
    if (batch.dtype, batch.shape[1:]) != (manifest.input.dtype, manifest.input.shape):
        raise _wrong_self_test("its batch does not fit the plan's input")
    if (labels.dtype, labels.shape) != (
        manifest.labels.dtype,
        (*batch.shape[:1], *manifest.labels.shape),
    ):
        raise _wrong_self_test("its labels do not fit the plan's")
    if len(self_test.gradient) != len(self_test.gradient_at):
        raise _wrong_self_test("gradients and their places differ in number")
    schemes = tuple(variant.scheme for variant in manifest.variants)
    if tuple(test.scheme for test in self_test.variants) != schemes:
        raise _wrong_self_test("its variants are not the plan's")
    if any(len(test.gradient) != len(self_test.gradient_at) for test in self_test.variants):
        raise _wrong_self_test("gradients of a variant and their places differ in number")
    if any(place >= manifest.n_train for place in self_test.gradient_at):
        raise _wrong_self_test("it names a gradient beyond the last")
    for tensor in (batch, labels, self_test.scores):
        tensor.array()


def _wrong_self_test(why: str) -> PlanError:
    return PlanError("the plan's self-test is wrong", why=why, repair="export the plan again")
