"""The plans that ship, and what opening one may load and cost."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from kellet.sdk.plan import BUILTIN_PLANS, Plan
from kellet.sdk.tasks import split, task
from kellet.sdk.variants import add_variants

HEAVY = ["torch", "onnx", "onnxscript", "onnx_ir", "numba", "llvmlite", "matplotlib", "scipy"]

ONE_STEP = """
import sys
import numpy as np
from kellet.sdk.plan import Plan, export_model
plan = Plan.open("har")
session, evaluator = plan.session(), plan.evaluator()
x, y = plan.check_data(np.ones((32, 9, 128)), np.zeros(32))
plan.session("w8.row").step(x, y)
session.step(x, y)
session.step(x, y)
evaluator.evaluate(session.params, x, y)
export_model(plan, session.params)
"""


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("name", BUILTIN_PLANS)
def test_a_built_in_plan_passes_its_self_test(name: str) -> None:
    plan = Plan.open(name)
    assert plan.self_test().gradient_error <= 1e-6
    assert plan.manifest.licence == "Apache-2.0"
    assert plan.manifest.loss == "cross_entropy"
    assert plan.n_train == plan.n_params


@pytest.mark.parametrize("name", BUILTIN_PLANS)
def test_a_built_in_plan_has_the_variants_that_apply(name: str) -> None:
    plan = Plan.open(name)
    assert plan.schemes == ("f32/1", "w8.row/1", "w8.block64/1")
    assert add_variants(plan).variant_graph("w8.row") == plan.variant_graph("w8.row")
    assert add_variants(plan).variant_graph("w8.block64") == plan.variant_graph("w8.block64")
    for scheme in plan.schemes:
        plan.self_test(scheme)


@pytest.mark.parametrize("name", BUILTIN_PLANS)
def test_a_built_in_plan_takes_its_tasks_data(name: str) -> None:
    plan, data = Plan.open(name), task(name)
    x, y = plan.check_data(*data.load_user(data.users[0]))
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert len(plan.manifest.labels.names) == 6


def test_the_wisdm_plan_learns_from_pooled_data() -> None:
    plan, data = Plan.open("wisdm"), task("wisdm")
    shares = split(data, 1)
    x, y = data.load(shares.devices["device-1"])
    session = plan.session()
    order = np.random.default_rng(0)
    for _ in range(10):
        shuffled = order.permutation(len(x))
        for start in range(0, len(x), 32):
            rows = shuffled[start : start + 32]
            session.step(x[rows], y[rows])
            session.params[: plan.n_train] -= np.float32(0.1) * session.grads
    found = plan.evaluator().evaluate(session.params, *data.load(shares.test_users))
    assert found.accuracy is not None
    assert found.accuracy > 0.8
    before = plan.evaluator().evaluate(plan.initial(), *data.load(shares.test_users))
    assert before.accuracy is not None
    assert before.accuracy < 0.4


def test_a_device_loads_no_torch_onnx_numba_or_matplotlib() -> None:
    loaded = run(ONE_STEP + f"print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded == "[]"


def test_a_process_on_har_at_batch_32_stays_far_below_150_mb() -> None:
    peak = run(
        ONE_STEP + "print(next(l for l in open('/proc/self/status') if 'VmHWM' in l).split()[1])"
    )
    assert int(peak) / 1024 < 110


def test_the_manifest_knows_the_memory_of_other_batch_sizes() -> None:
    manifest = Plan.open("har").manifest
    assert sorted(manifest.memory) == [1, 8, 32]
    assert manifest.peak_bytes(8) == manifest.memory[8]
    assert manifest.memory[8] < manifest.peak_bytes(16) < manifest.memory[32]
    assert manifest.memory[32] < manifest.peak_bytes(64) < 2.1 * manifest.memory[32]
