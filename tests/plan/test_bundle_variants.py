"""Variants in the file of a plan: what is held against what, and what a newer Kellet may add."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.toy_plans import softmax_regression

from kellet.sdk.errors import PlanError
from kellet.sdk.plan import Plan
from kellet.sdk.plan.container import pack
from kellet.sdk.variants import add_variants

ENTRY = "step.w8.row-1.onnx"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return add_variants(softmax_regression(96, 4, initial=0.5))


def entries(plan: Plan) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(plan.raw)) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def changed(plan: Plan, entry: str, change: Callable[[dict[str, Any]], None]) -> dict[str, bytes]:
    """The entries, one of them msgpack that ``change`` has been at."""
    whole = entries(plan)
    content = msgspec.msgpack.decode(whole[entry])
    change(content)
    return whole | {entry: msgspec.msgpack.encode(content)}


def refused(whole: dict[str, bytes], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        Plan.open(pack(whole))


def test_variants_follow_the_other_entries_in_the_order_of_the_manifest(plan: Plan) -> None:
    assert list(entries(plan)) == [
        "manifest.msgpack", "step.onnx", "eval.onnx", "initial.f32", "selftest.msgpack",
        ENTRY, "step.w8.block64-1.onnx",
    ]  # fmt: skip
    assert [v.scheme for v in plan.manifest.variants] == ["w8.row/1", "w8.block64/1"]
    assert bytes(plan.variant_graph("w8.row")) == entries(plan)[ENTRY]
    assert bytes(plan.variant_graph("f32")) == entries(plan)["step.onnx"]


def test_an_entry_must_be_there_and_no_other(plan: Plan) -> None:
    whole = entries(plan)
    refused({n: c for n, c in whole.items() if n != ENTRY}, "not where it must be")
    refused({**whole, "step.w8.row+a8-1.onnx": whole[ENTRY]}, "more than a plan")
    last = dict(whole)
    last[ENTRY] = last.pop(ENTRY)
    refused(last, "not where it must be")


def test_a_variants_graph_must_have_the_schemes_inputs(plan: Plan) -> None:
    whole = entries(plan)
    refused(whole | {ENTRY: whole["step.onnx"]}, r"w8.row/1 graph.*input 'int8::W' is missing")
    refused(whole | {ENTRY: whole["eval.onnx"]}, r"w8.row/1 graph")
    refused(whole | {ENTRY: b"\xff\xff"}, r"graph of the plan is refused")
    unknown = whole[ENTRY].replace(b"DequantizeLinear", b"DequantizeCircle")
    refused(whole | {ENTRY: unknown}, r"DequantizeCircle")


@pytest.mark.parametrize(
    ("schemes", "why"),
    [
        (["w8.row/1", "w8.row/1"], "name a scheme twice"),
        (["f32/1"], "or float32's"),
        (["w8.row"], "scheme"),
        (["../../etc/passwd/1"], "scheme"),
        (["w8/row/1"], "scheme"),
    ],
)
def test_a_manifest_names_schemes_and_each_once(plan: Plan, schemes: list[str], why: str) -> None:
    variants = [{"scheme": scheme, "memory": {}} for scheme in schemes]
    refused(changed(plan, "manifest.msgpack", lambda m: m.update(variants=variants)), why)


def test_each_variant_has_a_test_of_its_own(plan: Plan) -> None:
    fewer = changed(plan, "selftest.msgpack", lambda test: test["variants"].pop())
    refused(fewer, "its variants are not the plan's")
    turned = changed(plan, "selftest.msgpack", lambda test: test["variants"].reverse())
    refused(turned, "its variants are not the plan's")
    short = changed(plan, "selftest.msgpack", lambda t: t["variants"][0].update(gradient=[0.0]))
    refused(short, "differ in number")


def test_a_newer_schemes_variant_is_carried_and_not_looked_at(plan: Plan) -> None:
    def newer(content: dict[str, Any]) -> None:
        content["variants"].append({**content["variants"][0], "scheme": "w4.row/3"})

    whole = changed(plan, "manifest.msgpack", newer)
    test = changed(plan, "selftest.msgpack", newer)["selftest.msgpack"]
    raw = pack(whole | {"selftest.msgpack": test, "step.w4.row-3.onnx": b"of another time"})
    opened = Plan.open(raw)
    assert opened.schemes == plan.schemes
    assert opened.raw == raw
    for scheme in opened.schemes:
        opened.self_test(scheme)


def test_a_mapped_file_is_the_plan_and_may_be_replaced(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.kplan"
    path.write_bytes(plan.raw)
    opened = Plan.open(path)
    assert (opened, opened.raw, opened.id) == (plan, plan.raw, plan.id)
    opened.release()
    other = tmp_path / "other"
    other.write_bytes(b"x")
    other.replace(path)
    assert np.array_equal(opened.initial(), plan.initial())
    assert opened.session("w8.row").step(np.ones((1, 96), np.float32), np.array([0])) > 0
    with pytest.raises(PlanError, match="begin as a ZIP"):
        Plan.open(path)
    path.write_bytes(b"")
    with pytest.raises(PlanError, match="begin as a ZIP"):
        Plan.open(path)
