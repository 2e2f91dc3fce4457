"""Int8 variants against the float32 graph at the decoded weights, and what they look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec import structs
from onnx import helper
from support.toy_plans import linear_loss, model, quadratic, softmax_regression, value

from kellet.sdk.authoring import Tensor, write_bundle
from kellet.sdk.errors import PlanError, UsageError
from kellet.sdk.plan import InputSpec, Int8Layout, Int8Session, LabelSpec, Plan
from kellet.sdk.plan.bundle import VariantTest, step_inputs, step_outputs, write_contents
from kellet.sdk.plan.operators import OPERATORS
from kellet.sdk.variants import add_variants, sparse, unfit

ZOO = {path.stem: path for path in sorted((Path(__file__).parent / "zoo").glob("*.kplan"))}
SCHEMES = ("w8.row", "w8.block64")


def graph_of(plan: Plan, scheme: str) -> onnx.ModelProto:
    return onnx.load_from_string(bytes(plan.variant_graph(scheme)))


def drawn(plan: Plan, rows: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(rows)
    shape, labels = (rows, *plan.manifest.input.shape), plan.manifest.labels.classes
    if plan.manifest.input.dtype == "int64":
        x = numbers.integers(int(plan.manifest.input.low or 0), 200, shape)
    else:
        x = numbers.standard_normal(shape).astype(np.float32)
    return x, numbers.integers(0, labels or 2, rows)


def largest_error(plan: Plan, scheme: str, rows: int, seed: int = 5) -> float:
    """Of loss, gradients and buffers, against the float32 graph at the decoded weights."""
    x, y = drawn(plan, rows)
    session, reference = plan.session(scheme), plan.session()
    assert isinstance(session, Int8Session)
    start = plan.initial()
    start[: plan.n_train] += 0.02 * np.random.default_rng(1).standard_normal(plan.n_train)
    session.load(start, seed=seed)
    session.decoded(reference.params[: plan.n_update])
    for held, decoded in session.frozen():
        reference.params[held.flat] = decoded
    assert not np.array_equal(reference.params[: plan.n_train], start[: plan.n_train])
    errors = [abs(session.step(x, y) - reference.step(x, y))]
    found = np.zeros(plan.n_train, np.float32)
    for place, gradient in session.gradients():
        found[place] = gradient
    errors.append(float(np.abs(found - reference.grads).max() / np.abs(reference.grads).max()))
    buffers = slice(plan.n_train, plan.n_update)
    moved = session.decoded()[buffers] - reference.params[buffers]
    errors.append(float(np.abs(moved).max(initial=0.0)))
    return max(errors)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ZOO)
def test_gradients_are_those_of_the_float_graph_at_the_decoded_weights(
    name: str, scheme: str
) -> None:
    plan = add_variants(Plan.open(ZOO[name]), [scheme])
    assert [largest_error(plan, scheme, rows) <= 1e-5 for rows in (1, 5, 32)] == [True] * 3


@pytest.mark.parametrize("name", ["batch_norm", "gru", "embedding", "transformer"])
def test_frozen_tensors_are_decoded_too(name: str) -> None:
    plan = add_variants(sparse(Plan.open(ZOO[name]), last=1), ["w8.row"])
    assert Int8Layout.of(plan.manifest, "w8.row").frozen
    assert [largest_error(plan, "w8.row", rows) <= 1e-5 for rows in (1, 5, 32)] == [True] * 3


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", ZOO)
def test_each_consumer_decodes_for_itself_and_nothing_is_left_over(name: str, scheme: str) -> None:
    plan = add_variants(Plan.open(ZOO[name]), [scheme])
    graph = graph_of(plan, scheme).graph
    readers = Counter(read for node in graph.node for read in node.input)
    made = {output: node for node in graph.node for output in node.output}
    decoded = [node for node in graph.node if node.op_type == "DequantizeLinear"]
    assert len(decoded) >= len(Int8Layout.of(plan.manifest, scheme).weights)
    # Each decoding, and each view of one, is read exactly once.
    for node in decoded:
        assert node.attribute[0].name == "axis"
        assert node.attribute[0].i == 0
        name = node.output[0]
        while True:
            assert readers[name] == 1, name
            (reader,) = (n for n in graph.node if name in n.input)
            if reader.op_type not in ("Reshape", "Transpose", "Squeeze", "Unsqueeze"):
                break
            name = reader.output[0]
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in made:
            assert made[node.input[0]].op_type != "Transpose"
    outputs = {output.name for output in graph.output}
    assert all({*node.output} & {*readers, *outputs} for node in graph.node)
    assert all(tensor.name in readers for tensor in graph.initializer)
    values = [tuple(t.raw_data) + tuple(t.dims) for t in graph.initializer if "/v" in t.name]
    assert len(values) == len(set(values))


@pytest.mark.parametrize("name", ZOO)
def test_a_variants_interface_is_the_plans(name: str) -> None:
    plan = add_variants(Plan.open(ZOO[name]))
    before = onnx.load_from_string(bytes(plan.step_graph))
    for scheme in plan.schemes[1:]:
        found = graph_of(plan, scheme)
        assert (found.ir_version, found.opset_import) == (before.ir_version, before.opset_import)
        assert tuple(v.name for v in found.graph.input) == step_inputs(plan.manifest, scheme)
        assert tuple(v.name for v in found.graph.output) == step_outputs(plan.manifest)
        assert {node.op_type for node in found.graph.node} <= OPERATORS
        names = [node.name for node in found.graph.node]
        assert len(names) == len(set(names))
        onnx.checker.check_model(found)


@pytest.mark.parametrize("name", ["perceptron", "depthwise", "transformer"])
def test_deriving_is_repeatable_and_leaves_the_plan_as_it_was(name: str) -> None:
    plan = Plan.open(ZOO[name])
    once, again = add_variants(plan), add_variants(Plan.open(ZOO[name]))
    assert once.raw == again.raw
    assert add_variants(once).raw == once.raw
    assert add_variants(once, []).raw == plan.raw
    assert bytes(once.step_graph) == bytes(plan.step_graph)
    assert once.expected.gradient == plan.expected.gradient
    assert once.id != plan.id
    for scheme in once.schemes:
        result = once.self_test(scheme)
        assert result.scheme == scheme
        assert result.gradient_error <= 1e-6


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda test: structs.replace(test, loss=test.loss + 1e-3), "the loss is off by 0.000"),
        (
            lambda test: structs.replace(test, gradient=tuple(2 * g for g in test.gradient)),
            "the gradient is off by 0.5",
        ),
    ],
)
def test_another_answer_fails_the_variants_self_test_alone(
    change: Callable[[VariantTest], VariantTest], why: str
) -> None:
    plan = add_variants(softmax_regression(3, 2, initial=[1, -1, 0.5, 0, 2, 0, 3, 4]), ["w8.row"])
    assert plan.expected.variants[0].gradient != plan.expected.gradient  # at rounded weights
    wrong = structs.replace(plan.expected, variants=(change(plan.expected.variants[0]),))
    changed = Plan(
        write_contents(
            plan.manifest,
            plan.step_graph,
            plan.eval_graph,
            plan.initial(),
            wrong,
            variants={"w8.row/1": bytes(plan.variant_graph("w8.row"))},
        )
    )
    changed.self_test()
    with pytest.raises(PlanError, match=f"self-test of w8.row/1 fails: {why}"):
        changed.self_test("w8.row")


def tied() -> Plan:
    """Scores x W^T and (x W^T) W, W read in three ways, under names made to clash.

    loss = mean of the second; its gradient is not asked for but of ``b``.
    """
    x, y, w, b = (
        value("batch", "n", 2),
        value("labels", "n", dtype=onnx.TensorProto.INT64),
        value("W", 2, 2),
        value("b", 2),
    )
    scores = [
        helper.make_node("Transpose", ["W"], ["/v0"], perm=[1, 0], name="/v1"),
        helper.make_node("MatMul", ["batch", "/v0"], ["/v2"], name="/v3"),
        helper.make_node("Transpose", ["/v0"], ["/v4"], perm=[1, 0], name="/v5"),
        helper.make_node("Gemm", ["/v2", "/v4", "b"], ["scores"], name="/v6"),
    ]
    step = [
        *scores,
        helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0, name="/v7"),
        helper.make_node("Mul", ["W", "two"], ["grad::W"], name="/v8"),
        helper.make_node("Mul", ["b", "two"], ["grad::b"], name="/v9"),
    ]
    constants = {"two": np.float32(2)}
    return Plan.open(
        write_bundle(
            name="tied",
            step=model(
                step, [x, y, w, b], [value("loss"), value("grad::W", 2, 2), value("grad::b", 2)],
                constants,
            ),
            evaluate=model(scores, [x, w, b], [value("scores", "n", 2)]),
            tensors=[
                Tensor("W", np.array([[1, 2], [3, -4]], np.float32)),
                Tensor("b", np.zeros(2, np.float32)),
            ],
            input=InputSpec(shape=(2,)),
            labels=LabelSpec(),
            loss="custom",
            example_batch=np.ones((2, 2), np.float32),
            example_labels=np.zeros(2, np.int64),
        )
    )  # fmt: skip


def test_a_weight_read_in_three_ways_is_decoded_three_times() -> None:
    plan = add_variants(tied(), ["w8.row"])
    counts = Counter(node.op_type for node in graph_of(plan, "w8.row").graph.node)
    assert counts == {
        "DequantizeLinear": 3, "MatMul": 1, "Reshape": 1, "Transpose": 1, "Gemm": 1,
        "ReduceMean": 1, "Mul": 2,
    }  # fmt: skip
    session = plan.session("w8.row")
    assert isinstance(session, Int8Session)
    session.weights.values[:] = [1, 2, 3, -4]
    session.weights.scales[:] = [1, 0.5]  # W = [[1, 2], [1.5, -2]]
    session.rest[:] = [10, 20]
    # x = (1, 1): x W^T = (3, -0.5); times W = (3 - 0.75, 6 + 1); with b (12.25, 27).
    assert session.step(np.ones((1, 2), np.float32), np.array([0])) == (12.25 + 27) / 2
    assert session.weight_grads.tolist() == [2, 4, 3, -4]
    assert session.rest_grads.tolist() == [20, 40]


def test_views_by_constants_follow_and_the_others_are_decoded_before() -> None:
    """W [2, 3] as [3, 2] by a Constant node, and sliced: one view, and one consumer."""
    shape = onnx.numpy_helper.from_array(np.array([3, 2]), "")
    scores = [
        helper.make_node("Constant", [], ["shape"], value=shape, name="c"),
        helper.make_node("Reshape", ["W", "shape"], ["turned"], name="r"),
        helper.make_node("MatMul", ["batch", "turned"], ["scores"], name="m"),
    ]
    step = [
        *scores,
        helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0, name="l"),
        helper.make_node("Slice", ["W", "zero", "one"], ["row"], name="s"),
        helper.make_node("Add", ["row", "W"], ["grad::W"], name="a"),
    ]
    x, y = value("batch", "n", 3), value("labels", "n", dtype=onnx.TensorProto.INT64)
    w, constants = value("W", 2, 3), {"zero": np.array([0]), "one": np.array([1])}
    plan = Plan.open(
        write_bundle(
            name="views",
            step=model(step, [x, y, w], [value("loss"), value("grad::W", 2, 3)], constants),
            evaluate=model(scores, [x, w], [value("scores", "n", 2)]),
            tensors=[Tensor("W", np.ones((2, 3), np.float32))],
            input=InputSpec(shape=(3,)),
            labels=LabelSpec(),
            loss="custom",
            example_batch=np.ones((2, 3), np.float32),
            example_labels=np.zeros(2, np.int64),
        )
    )
    plan = add_variants(plan, ["w8.row"])
    onnx.checker.check_model(graph_of(plan, "w8.row"))
    counts = Counter(node.op_type for node in graph_of(plan, "w8.row").graph.node)
    assert (counts["DequantizeLinear"], counts["Reshape"], counts["Slice"]) == (3, 1, 1)
    session = plan.session("w8.row")
    assert isinstance(session, Int8Session)
    session.weights.values[:] = [1, 2, 3, 4, 5, 6]
    session.weights.scales[:] = [1, 10]  # W = [[1, 2, 3], [40, 50, 60]], turned [[1, 2], ...
    # x = (1, 1, 1): columns of [[1, 2], [3, 40], [50, 60]] sum to 54 and 102.
    assert session.step(np.ones((1, 3), np.float32), np.array([0])) == 78
    assert session.weight_grads.tolist() == [2, 4, 6, 41, 52, 63]


def test_a_plan_of_vectors_has_no_variants() -> None:
    for plan in (linear_loss(3), quadratic()):
        for scheme in ("w8.row", "w8.block64", "w8.row+a8"):
            assert "no tensor has two dimensions" in unfit(plan, scheme)
        assert unfit(plan, "f32") == ""
        assert add_variants(plan).schemes == ("f32/1",)
        assert add_variants(plan).raw == plan.raw


def test_blocks_that_are_rows_already_are_no_variant() -> None:
    plan = softmax_regression(64, 3)
    assert "it would be w8.row" in unfit(plan, "w8.block64")
    assert add_variants(plan).schemes == ("f32/1", "w8.row/1")
    with pytest.raises(PlanError, match=r"no variant w8.block64/1: blocks of 64.*leave it out"):
        add_variants(plan, ["w8.row", "w8.block64"])


def test_a_scheme_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="no scheme 'int8'"):
        add_variants(softmax_regression(3, 2), ["int8"])


def test_a_failing_row_is_named() -> None:
    with pytest.raises(PlanError, match="W cannot be held in int8"):
        add_variants(softmax_regression(3, 2, initial=[3e38] * 8))
