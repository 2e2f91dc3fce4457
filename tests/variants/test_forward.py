"""Int8 activations: against NumPy, and only where they are meant to be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from support.toy_plans import model, softmax_regression, value

from kellet.sdk.authoring import Tensor, write_bundle
from kellet.sdk.plan import InputSpec, Int8Session, LabelSpec, Plan
from kellet.sdk.variants import add_variants, unfit

ZOO = Path(__file__).parent / "zoo"
SCHEME = "w8.row+a8/1"


def linear(columns: int, outputs: int, *, matmul: bool = False, plain: bool = False) -> Plan:
    """scores = x W^T (+ b); loss their mean; grad W = mean over rows and outputs, by hand.

    With ``plain``, W is [columns, outputs] and is not transposed.
    """
    x, y = value("batch", "n", columns), value("labels", "n", dtype=onnx.TensorProto.INT64)
    shape = (columns, outputs) if plain else (outputs, columns)
    w = value("W", *shape)
    numbers = np.random.default_rng(0)
    tensors = [Tensor("W", (0.1 * numbers.standard_normal(shape)).astype(np.float32))]
    inputs, constants = [x, y, w], {"n": np.float32(1 / outputs), "zero": np.array([0])}
    scores = []
    product = "scores" if matmul else "dot"
    if plain:
        scores.append(helper.make_node("MatMul", ["batch", "W"], [product]))
    else:
        scores.append(helper.make_node("Transpose", ["W"], ["T"], perm=[1, 0]))
        scores.append(helper.make_node("MatMul", ["batch", "T"], [product]))
    if not matmul:
        scores[-1] = helper.make_node("Gemm", [*scores[-1].input, "b"], ["scores"])
        tensors.append(Tensor("b", np.arange(outputs).astype(np.float32)))
        inputs.append(value("b", outputs))
    outs = [value("loss"), value("grad::W", *shape)]
    step = [
        *scores,
        helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0),
        helper.make_node("Mul", ["scores", "n"], ["signal"]),
        helper.make_node("Gemm", ["batch", "signal"] if plain else ["signal", "batch"],
                         ["grad::W"], transA=1),
    ]  # fmt: skip
    if not matmul:
        step.append(helper.make_node("ReduceSum", ["signal", "zero"], ["grad::b"], keepdims=0))
        outs.append(value("grad::b", outputs))
    else:
        constants.pop("zero")
    return Plan.open(
        write_bundle(
            name="linear",
            step=model(step, inputs, outs, constants),
            evaluate=model(scores, [inputs[0], *inputs[2:]], [value("scores", "n", outputs)]),
            tensors=tensors,
            input=InputSpec(shape=(columns,)),
            labels=LabelSpec(),
            loss="custom",
            example_batch=numbers.standard_normal((4, columns)).astype(np.float32),
            example_labels=np.zeros(4, np.int64),
        )
    )


def quantised(x: np.ndarray) -> np.ndarray:
    """What a layer sees of x: half of uint8's range, by ONNX's rule for dynamic quantisation."""
    low, high = np.float32(min(x.min(), 0)), np.float32(max(x.max(), 0))
    scale = np.float32((np.float32(high + high - low) - low) / np.float32(255))
    if scale == 0:
        return np.zeros_like(x)
    zero = np.rint(np.clip(-low / scale, 0, 255)).astype(np.float32)
    units = np.clip(np.rint(x / scale) + zero, 0, 255)
    assert units.max() <= 128
    return ((units - zero) * scale).astype(np.float64)


@pytest.mark.parametrize("rows", [1, 4, 33])
@pytest.mark.parametrize("matmul", [False, True])
@pytest.mark.parametrize("kind", ["both signs", "positive", "negative", "zero", "one outlier"])
def test_a_linear_layer_is_numpys_dynamic_quantisation(rows: int, matmul: bool, kind: str) -> None:
    plan = add_variants(linear(192, 7, matmul=matmul), [SCHEME])
    session = plan.session(SCHEME)
    assert isinstance(session, Int8Session)
    x = np.random.default_rng(rows).standard_normal((rows, 192)).astype(np.float32)
    x = {
        "both signs": x, "positive": np.abs(x), "negative": -np.abs(x), "zero": 0 * x,
        "one outlier": np.where(np.arange(192) == 3, np.float32(500), x),
    }[kind]  # fmt: skip
    loss = session.step(x, np.zeros(rows, np.int64))
    decoded = session.decoded().astype(np.float64)
    weights, bias = decoded[: 7 * 192].reshape(7, 192), decoded[7 * 192 :] if not matmul else 0.0
    scores = quantised(x) @ weights.T + bias
    scale = np.abs(scores).max() + 1e-6
    assert abs(loss - scores.mean()) <= 1e-5 * scale
    # Straight through: the gradient takes the float activation, with the signal of the int8 one.
    wanted = (scores / 7).T @ x
    found = session.weight_grads.reshape(7, 192)
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max() + 1e-12


def test_the_largest_products_are_exact_on_every_processor() -> None:
    # 255 * 127 twice overflows 16 bits, where x86 without VNNI adds them; 128 * 127 does not.
    assert 2 * 128 * 127 < 2**15 < 2 * 255 * 127
    plan = add_variants(linear(256, 4, matmul=True), [SCHEME])
    session = plan.session(SCHEME)
    assert isinstance(session, Int8Session)
    session.weights.values[:] = 127
    session.weights.scales[:] = 1
    x = np.full((2, 256), 128, np.float32)
    x[:, 0] = -127  # the range is 255, so a unit is 2, up to rounding: 127 -> 64 units
    loss = session.step(x, np.zeros(2, np.int64))
    assert loss == pytest.approx(float(quantised(x)[0].sum() * 127), rel=1e-6)


def test_narrow_layers_and_layers_along_columns_stay_float() -> None:
    assert "128 columns" in unfit(linear(127, 4), SCHEME)
    assert unfit(linear(128, 4), SCHEME) == ""
    # Its rows are inputs: a scale a row is not one an output.
    assert "128 columns" in unfit(linear(128, 130, plain=True), SCHEME)


def test_the_backward_pass_stays_float() -> None:
    """softmax_regression's Gemm has transB, its gradient two products without a weight."""
    plan = add_variants(softmax_regression(128, 3), [SCHEME])
    graph = onnx.load_from_string(bytes(plan.variant_graph(SCHEME))).graph
    counts = Counter(node.op_type for node in graph.node)
    assert (counts["MatMulInteger"], counts["Gemm"], counts["DequantizeLinear"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("name", "layers"), [("group_norm", 1), ("batch_norm", 1), ("transformer", 1)]
)
def test_wide_layers_of_the_zoo_are_integer_and_learn_alike(name: str, layers: int) -> None:
    plan = add_variants(Plan.open(ZOO / f"{name}.kplan"), ["w8.row", SCHEME])
    graph = onnx.load_from_string(bytes(plan.variant_graph(SCHEME))).graph
    assert sum(node.op_type == "MatMulInteger" for node in graph.node) == layers
    x, y = plan.expected.batch.array(), plan.expected.labels.array()
    one, two = plan.session("w8.row"), plan.session(SCHEME)
    assert isinstance(one, Int8Session)
    assert isinstance(two, Int8Session)
    assert two.step(x, y) == pytest.approx(one.step(x, y), abs=0.01)
    away = np.linalg.norm(two.weight_grads - one.weight_grads) / np.linalg.norm(one.weight_grads)
    assert 0 < away < 0.02
    assert plan.self_test(SCHEME).gradient_error <= 1e-6


def test_others_of_the_zoo_have_no_wide_layer() -> None:
    for name in ("depthwise", "signal", "gru", "hand_made_gru", "perceptron", "embedding"):
        assert "128 columns" in unfit(Plan.open(ZOO / f"{name}.kplan"), SCHEME)
