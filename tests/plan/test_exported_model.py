"""A checkpoint: an ONNX model that anyone can run, written without onnx."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from support.toy_plans import linear_loss, softmax_regression, stateful

from kellet.sdk.errors import PlanError, UsageError
from kellet.sdk.plan import Plan, export_model


def trained(plan: Plan) -> np.ndarray:
    numbers = np.random.default_rng(3)
    params = plan.initial()
    params += numbers.standard_normal(plan.n_params).astype(np.float32) / 10
    return params


@pytest.mark.parametrize("name", ["wisdm", "har"])
def test_the_model_is_valid_onnx_and_gives_the_plans_scores(name: str) -> None:
    plan = Plan.open(name)
    params = trained(plan)
    encoded = export_model(plan, params)
    onnx.checker.check_model(onnx.load_from_string(encoded), full_check=True)
    session = onnxruntime.InferenceSession(encoded, providers=["CPUExecutionProvider"])
    assert [i.name for i in session.get_inputs()] == ["batch"]
    assert [o.name for o in session.get_outputs()] == ["scores"]
    x = np.random.default_rng(4).standard_normal((5, *plan.manifest.input.shape))
    (scores,) = session.run(None, {"batch": x.astype(np.float32)})
    wanted = plan.evaluator().scores(params, x)
    assert np.abs(scores - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_parameters_are_stored_bit_for_bit_under_their_names() -> None:
    plan = stateful(w=0.1, m=0.2, f=0.3)
    model = onnx.load_from_string(export_model(plan, plan.initial()))
    stored = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    for name, value in plan.views(plan.initial()).items():
        assert stored[name].tobytes() == value.tobytes()
        assert stored[name].shape == value.shape


def test_the_metadata_name_the_plan_and_its_classes() -> None:
    plan = Plan.open("wisdm")
    model = onnx.load_from_string(export_model(plan, plan.initial()))
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata["kellet.plan"] == plan.hex_id
    assert metadata["kellet.labels"].split("\n")[:2] == ["Walking", "Jogging"]


def test_the_scores_are_the_parameters_own() -> None:
    plan = linear_loss(2, 1.0)
    params = plan.initial()
    params[:] = [2, -3]
    session = onnxruntime.InferenceSession(
        export_model(plan, params), providers=["CPUExecutionProvider"]
    )
    (scores,) = session.run(None, {"batch": np.array([[1, 1], [0, 2]], np.float32)})
    assert scores.tolist() == [0.0, -5.0]


def test_a_wrong_or_broken_vector_is_refused() -> None:
    plan = softmax_regression(2, 2)
    with pytest.raises(UsageError, match=r"the plan's are float32 \[6\]"):
        export_model(plan, np.zeros(5, np.float32))
    with pytest.raises(PlanError, match=r"not finite"):
        export_model(plan, np.full(6, np.nan, np.float32))
