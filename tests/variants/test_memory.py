"""Peaks of activations, worked by hand; and that a process shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support.toy_plans import model, value

from kellet.sdk.authoring import Tensor, write_bundle
from kellet.sdk.plan import InputSpec, LabelSpec, Plan
from kellet.sdk.variants import add_variants, sparse
from kellet.sdk.variants.memory import activation_peaks

INT64 = onnx.TensorProto.INT64


def peaks(nodes: list[onnx.NodeProto], width: int, **constants: np.ndarray) -> dict[int, int]:
    """Of a graph from batch [n, 4] and w [4, width] to a scalar loss."""
    graph = model(
        nodes,
        [value("batch", "n", 4), value("labels", "n", dtype=INT64), value("w", 4, width)],
        [value("loss")],
        constants,
    )
    x, y = np.ones((2, 4), np.float32), np.zeros(2, np.int64)
    return activation_peaks(graph, {"w": np.ones((4, width), np.float32)}, x, y)


def node(operator: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs.split(), [output], **attributes)


def test_a_value_lives_until_it_is_last_read() -> None:
    # a: 24 b, b: 24 b beside it; c: 24 b beside b alone; the batch 16 b, the labels 8 b.
    chain = [node("MatMul", "batch w", "a"), node("Relu", "a", "b"), node("Relu", "b", "c")]
    assert peaks([*chain, node("ReduceMean", "c", "loss", keepdims=0)], 6) == {
        b: (24 + 24 + 16 + 8) * b for b in (1, 8, 32)
    }
    # Read again at the end, a lives beside b and c.
    last = [node("Add", "c a", "d"), node("ReduceMean", "d", "loss", keepdims=0)]
    assert peaks([*chain, *last], 6)[1] == 3 * 24 + 24


def test_a_reshaped_value_is_the_same_memory() -> None:
    shape = np.array([-1, 2, 3])
    nodes = [
        node("MatMul", "batch w", "a"),
        node("Reshape", "a shape", "b"),
        node("Relu", "b", "c"),
        node("ReduceMean", "c", "loss", keepdims=0),
    ]
    assert peaks(nodes, 6, shape=shape)[1] == 2 * 24 + 24
    # The first name's end is not the memory's.
    nodes[2:] = [
        node("Relu", "b", "c"),
        node("Relu", "c", "d"),
        node("Add", "d b", "e"),
        node("ReduceMean", "e", "loss", keepdims=0),
    ]
    assert peaks(nodes, 6, shape=shape)[1] == 3 * 24 + 24


def test_what_needs_no_batch_runs_right_before_it_is_needed() -> None:
    nodes = [
        node("Relu", "w", "late"),  # 4 * 6 * 4 = 96 bytes
        node("MatMul", "batch w", "a"),
        node("Relu", "a", "b"),
        node("ReduceMean", "b", "m", keepdims=0),
        node("ReduceMean", "late", "k", keepdims=0),
        node("Add", "m k", "loss"),
    ]
    # At the end: late, k and m.
    assert peaks(nodes, 6)[1] == 96 + 4 + 4 + 24


def deep(layers: int, width: int) -> Plan:
    """Square layers, each y = x W^T, and their gradients by hand; the loss is the mean."""
    x, y = value("batch", "n", width), value("labels", "n", dtype=INT64)
    names = [f"w{i}" for i in range(layers)]
    forward, backward = [], []
    before = "batch"
    for i, name in enumerate(names):
        after = "scores" if i == layers - 1 else f"y{i}"
        forward.append(helper.make_node("Gemm", [before, name], [after], transB=1))
        before = after
    backward.append(helper.make_node("Mul", ["scores", "nought"], ["none"]))
    backward.append(helper.make_node("Add", ["none", "share"], [f"g{layers - 1}"]))
    for i in reversed(range(layers)):
        left = "batch" if i == 0 else f"y{i - 1}"
        grad = f"grad::{names[i]}"
        backward.append(helper.make_node("Gemm", [f"g{i}", left], [grad], transA=1))
        if i:
            backward.append(helper.make_node("MatMul", [f"g{i}", names[i]], [f"g{i - 1}"]))
    numbers = np.random.default_rng(0)
    tensors = [
        Tensor(n, (numbers.standard_normal((width, width)) / width**0.5).astype(np.float32))
        for n in names
    ]
    inputs = [value(n, width, width) for n in names]
    outputs = [value("loss"), *(value(f"grad::{n}", width, width) for n in names)]
    loss = helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0)
    constants = {"nought": np.float32(0), "share": np.float32(1 / width)}
    return Plan.open(
        write_bundle(
            name="deep",
            step=model([*forward, loss, *backward], [x, y, *inputs], outputs, constants),
            evaluate=model(forward, [x, *inputs], [value("scores", "n", width)]),
            tensors=tensors,
            input=InputSpec(shape=(width,)),
            labels=LabelSpec(),
            loss="custom",
            example_batch=numbers.standard_normal((2, width)).astype(np.float32),
            example_labels=np.zeros(2, np.int64),
        )
    )


MEASURE = """
import sys, numpy as np
from kellet.sdk.plan import Plan
def resident(key):
    return int(next(l for l in open("/proc/self/status") if key in l).split()[1]) / 1024
plan = Plan.open(sys.argv[1])
session = plan.session(sys.argv[2])
x = np.ones((8, *plan.manifest.input.shape), np.float32)
before = resident("VmRSS")
for _ in range(3):
    session.step(x, np.zeros(8, np.int64))
print(resident("VmHWM"), resident("VmRSS") - before)
"""


def measured(path: Path, scheme: str) -> tuple[float, float]:
    """Peak of a process, and what its steps took, in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, path, scheme],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    peak, steps = done.stdout.split()
    return float(peak), float(steps)


def test_a_process_holds_no_float_copy_of_the_weights(tmp_path: Path) -> None:
    """16 layers of 1 MiB: 16 MiB as float32, 4 as int8; one layer is decoded at a time."""
    plan = add_variants(deep(16, 512), ["w8.row"])
    variant = plan.manifest.variants[0]
    assert 2**20 < variant.peak_bytes(8) < 1.5 * 2**20
    path = tmp_path / "deep.kplan"
    path.write_bytes(plan.raw)
    peak, steps = measured(path, "f32")
    lower, int8_steps = measured(path, "w8.row")
    assert peak - lower > 8
    # 16 MiB of gradients, and the activations; had every layer stayed decoded, it were 16 more.
    assert int8_steps < 16 + 5
    assert steps < 16 + 5


def test_where_biases_alone_are_trained_weights_are_decoded_as_late(tmp_path: Path) -> None:
    """The first layer of 12, so that the backward pass goes through all of them."""
    plan = sparse(add_variants(deep(12, 512), ["w8.row"]), ["w0"])
    path = tmp_path / "deep.kplan"
    path.write_bytes(plan.raw)
    _, steps = measured(path, "w8.row")
    assert steps < 1 + 5
    assert plan.manifest.variants[0].peak_bytes(8) < 2 * 2**20


@pytest.mark.parametrize("scheme", ["w8.row", "w8.row+a8"])
def test_a_variants_peak_is_said_at_the_sizes_of_the_plans(scheme: str) -> None:
    plan = add_variants(deep(3, 128), [scheme])
    (variant,) = plan.manifest.variants
    assert sorted(variant.memory) == [1, 8, 32]
    assert variant.peak_bytes(8) == variant.memory[8]
    assert variant.memory[8] < variant.peak_bytes(20) < variant.memory[32]
