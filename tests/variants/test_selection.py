"""Plans that train a part of what another trains."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.toy_plans import linear_loss, softmax_regression

from kellet.sdk.errors import UsageError
from kellet.sdk.plan import Plan
from kellet.sdk.variants import add_variants, sparse
from kellet.sdk.variants.selection import chosen

ZOO = {path.stem: path for path in sorted((Path(__file__).parent / "zoo").glob("*.kplan"))}


def opened(name: str) -> Plan:
    return Plan.open(ZOO[name])


def trained(plan: Plan) -> list[str]:
    return [tensor.name for tensor in plan.manifest.tensors if tensor.role == "train"]


@pytest.mark.parametrize("name", ZOO)
def test_what_is_left_has_the_same_loss_and_gradient(name: str) -> None:
    whole = opened(name)
    plan = sparse(whole, last=1)
    x, y = whole.expected.batch.array(), whole.expected.labels.array()
    old, new = whole.session(), plan.session()
    assert new.step(x, y) == pytest.approx(old.step(x, y), abs=1e-6)
    before = whole.views(old.grads)
    assert trained(plan) == trained(whole)[-2:]
    for tensor, gradient in plan.views(new.grads).items():
        assert np.abs(gradient - before[tensor]).max() <= 1e-6 * np.abs(before[tensor]).max() + 1e-9
    plan.self_test()


@pytest.mark.parametrize("name", ZOO)
def test_the_initial_parameters_move_with_their_tensors(name: str) -> None:
    whole = opened(name)
    plan = sparse(whole, last=1)
    before, after = whole.views(whole.initial()), plan.views(plan.initial())
    assert set(before) == set(after)
    assert all(np.array_equal(before[tensor], after[tensor]) for tensor in before)
    assert plan.n_params == whole.n_params
    roles = [tensor.role for tensor in plan.manifest.tensors]
    assert roles == sorted(roles, key=("train", "buffer", "frozen").index)
    x = whole.expected.batch.array()
    one = whole.evaluator().scores(whole.initial(), x)
    assert np.array_equal(one, plan.evaluator().scores(plan.initial(), x))


def test_frozen_tensors_cost_no_gradient_no_backward_pass_and_no_bytes() -> None:
    whole = opened("group_norm")
    plan = sparse(whole, last=1)
    assert (plan.n_train, plan.n_update) == (32 * 49 * 10 + 10, 32 * 49 * 10 + 10)
    assert plan.session().grads.size == plan.n_train
    graphs = [onnx.load_from_string(bytes(p.step_graph)).graph for p in (whole, plan)]
    assert len(graphs[1].node) < len(graphs[0].node) / 2
    assert "ConvTranspose" not in {node.op_type for node in graphs[1].node}
    assert [output.name for output in graphs[1].output] == [
        "loss", "grad::9.weight", "grad::9.bias",
    ]  # fmt: skip
    assert plan.manifest.memory[32] < 0.3 * whole.manifest.memory[32]
    read = {name for node in graphs[1].node for name in node.input}
    assert all(tensor.name in read for tensor in graphs[1].initializer)


def test_buffers_of_frozen_layers_stay_buffers() -> None:
    whole = opened("batch_norm")
    plan = sparse(whole, ["5.*"])
    roles = {tensor.name: (tensor.role, tensor.aggregate) for tensor in plan.manifest.tensors}
    assert roles == {
        "5.weight": ("train", "mean"),
        "5.bias": ("train", "mean"),
        "1.running_mean": ("buffer", "mean"),
        "1.running_var": ("buffer", "mean"),
        "0.weight": ("frozen", "mean"),
        "0.bias": ("frozen", "mean"),
        "1.weight": ("frozen", "mean"),
        "1.bias": ("frozen", "mean"),
    }
    session = plan.session()
    session.step(whole.expected.batch.array(), whole.expected.labels.array())
    reference = whole.session()
    reference.step(whole.expected.batch.array(), whole.expected.labels.array())
    assert np.array_equal(
        plan.views(session.params)["1.running_var"], whole.views(reference.params)["1.running_var"]
    )


def test_names_globs_layers_and_biases_choose_what_they_say() -> None:
    manifest = opened("perceptron").manifest
    assert chosen(manifest, ["0.weight"]) == {"0.weight"}
    assert chosen(manifest, ["*.weight", "4.*"]) == {
        "0.weight", "2.weight", "4.weight", "4.bias",
    }  # fmt: skip
    assert chosen(manifest, [], last=2) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    assert chosen(manifest, [], biases=True) == {"0.bias", "2.bias", "4.bias"}
    assert chosen(manifest, ["0.weight"], last=1, biases=True) == {
        "0.weight", "0.bias", "2.bias", "4.weight", "4.bias",
    }  # fmt: skip
    recurrent = opened("gru").manifest
    assert chosen(recurrent, [], biases=True) == {
        "cell.bias_ih_l0", "cell.bias_hh_l0", "out.bias",
    }  # fmt: skip
    norms = opened("transformer").manifest
    assert "norm_1.weight" not in chosen(norms, [], biases=True)
    assert "norm_1.bias" in chosen(norms, [], biases=True)


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"train": ["head.*"]}, "no trained tensor is called 'head.*': the plan perceptron trains"),
        ({"train": ["0.weight", "7.bias"]}, "no trained tensor is called '7.bias'"),
        ({"train": ["0.weigh"]}, "no trained tensor is called '0.weigh'"),
        ({}, "nothing is chosen"),
        ({"train": []}, "nothing is chosen"),
        ({"last": 0}, "the last 0 layers are asked for: the plan perceptron trains 3: 0, 2, 4"),
        ({"last": 4}, "ask for 1 to 3"),
        ({"last": -1}, "the last -1 layers"),
    ],
)
def test_a_choice_of_nothing_is_refused(choice: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        sparse(opened("perceptron"), **choice)  # type: ignore[arg-type]


def test_a_plan_without_biases_says_so() -> None:
    with pytest.raises(UsageError, match="trains none, but w"):
        sparse(linear_loss(3), biases=True)


def test_frozen_tensors_cannot_be_chosen_again() -> None:
    plan = sparse(opened("perceptron"), last=1)
    with pytest.raises(UsageError, match=r"no trained tensor is called '0.weight'"):
        sparse(plan, ["0.weight"])


def test_variants_follow_where_they_apply() -> None:
    whole = add_variants(opened("transformer"))
    plan = sparse(whole, biases=True)
    assert plan.schemes == whole.schemes
    for scheme in plan.schemes:
        plan.self_test(scheme)
    assert sparse(opened("transformer"), biases=True).schemes == ("f32/1",)
    toy = add_variants(softmax_regression(64, 3), ["w8.row"])
    assert sparse(toy, ["b"]).schemes == ("f32/1", "w8.row/1")


def test_all_of_it_is_the_plan_itself() -> None:
    plan = opened("perceptron")
    same = sparse(plan, ["*"])
    assert same.manifest == plan.manifest
    assert np.array_equal(same.initial(), plan.initial())
    assert same.expected.gradient == plan.expected.gradient
