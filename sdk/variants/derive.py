"""Derive the variants of a plan, and check each against the plan itself."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from kellet.sdk.errors import PlanError
from kellet.sdk.plan import Int8Layout, Int8Session, Plan, selftest
from kellet.sdk.plan.bundle import VariantTest, write_contents
from kellet.sdk.plan.manifest import Variant
from kellet.sdk.plan.schemes import FLOAT32, SCHEMES, check_scheme, family
from kellet.sdk.variants.forward import MIN_COLUMNS, integer_forward, linear_layers
from kellet.sdk.variants.graph import Graph
from kellet.sdk.variants.memory import activation_peaks
from kellet.sdk.variants.resident import make_resident, resident_inputs

__all__ = ["add_variants", "unfit"]

TOLERANCE = 1e-5


def unfit(plan: Plan, scheme: str) -> str:
    """Return why a plan can have no variant ``scheme``; empty where it can."""
    scheme = check_scheme(scheme)
    if scheme == FLOAT32:
        return ""
    layout = Int8Layout.of(plan.manifest, scheme)
    if not (layout.weights or layout.frozen):
        return "no tensor has two dimensions or more, and vectors stay float32"
    if family(scheme) == "w8.block64" and layout == Int8Layout.of(plan.manifest, "w8.row/1"):
        return "blocks of 64 are its rows already, or divide no tensor: it would be w8.row"
    if family(scheme) == "w8.row+a8" and not linear_layers(Graph(plan.step_graph), layout):
        return f"no linear layer has {MIN_COLUMNS} columns or more, below which int8 is no faster"
    return ""


def add_variants(plan: Plan, schemes: Sequence[str] | None = None) -> Plan:
    """Return ``plan`` with the variants ``schemes`` (names or families) and no others.

    Without ``schemes``, all that apply. The float32 graphs and parameters are
    the plan's, untouched; the plan's id changes. Each variant of int8 weights
    is held against the float32 graph at the decoded weights, and refused
    with ``PlanError`` where loss or gradient differ by more than 1e-5. Raises
    ``PlanError`` for a scheme that does not apply (see `unfit`), ``UsageError``
    for one that is none.
    """
    if schemes is None:
        wanted = [scheme for scheme in SCHEMES[1:] if not unfit(plan, scheme)]
    else:
        named = {check_scheme(scheme) for scheme in schemes}
        wanted = [scheme for scheme in SCHEMES[1:] if scheme in named]
        for scheme in wanted:
            if why := unfit(plan, scheme):
                raise PlanError(
                    f"the plan {plan.manifest.name} can have no variant {scheme}",
                    why=why,
                    repair="leave it out",
                )
    graphs = {scheme: variant_graph(plan, scheme) for scheme in wanted}
    blank = {scheme: VariantTest(scheme, 0.0, ()) for scheme in wanted}
    draft = _with(plan, graphs, {scheme: {} for scheme in wanted}, blank)
    memory, tests = {}, {}
    for scheme in wanted:
        session = Int8Session(draft, scheme)
        if family(scheme) != "w8.row+a8":
            _check_against_float(draft, session)
        memory[scheme] = _memory(session, graphs[scheme])
        tests[scheme] = selftest.record_variant(draft, scheme)
    return _with(plan, graphs, memory, tests)


def variant_graph(plan: Plan, scheme: str) -> bytes:
    """Return the encoded step of a variant."""
    layout = Int8Layout.of(plan.manifest, scheme)
    graph = Graph(plan.step_graph)
    if family(scheme) == "w8.row+a8":
        integer_forward(graph, layout)
    make_resident(graph, layout)
    return graph.encoded(resident_inputs(graph, plan.manifest, scheme))


def _with(
    plan: Plan,
    graphs: dict[str, bytes],
    memory: dict[str, dict[int, int]],
    tests: dict[str, VariantTest],
) -> Plan:
    manifest = msgspec.structs.replace(
        plan.manifest, variants=tuple(Variant(s, memory[s]) for s in graphs)
    )
    self_test = msgspec.structs.replace(
        plan.expected, variants=tuple(_filled(plan, tests[s]) for s in graphs)
    )
    return Plan(
        write_contents(
            manifest,
            plan.step_graph,
            plan.eval_graph,
            plan.initial_view(),
            self_test,
            variants=graphs,
        )
    )


def _filled(plan: Plan, test: VariantTest) -> VariantTest:
    """A draft's test has no gradients yet; the bundle asks for as many as there are places."""
    if test.gradient:
        return test
    return VariantTest(test.scheme, test.loss, (0.0,) * len(plan.expected.gradient_at))


def _memory(session: Int8Session, graph: bytes) -> dict[int, int]:
    x, y = session.plan.expected.batch.array(), session.plan.expected.labels.array()
    return activation_peaks(graph, session.inputs(), x, y)


def _check_against_float(plan: Plan, session: Int8Session) -> None:
    """Hold a variant against the float32 graph at the decoded weights."""
    x, y = plan.expected.batch.array(), plan.expected.labels.array()
    reference = plan.session()
    session.decoded(reference.params[: plan.n_update])
    for held, value in session.frozen():
        reference.params[held.flat] = value
    wanted = reference.step(x, y)
    worst = abs(session.step(x, y) - wanted) / max(1.0, abs(wanted))
    scale = max(float(np.abs(reference.grads).max()), 1e-30)
    for flat, found in session.gradients():
        difference = np.abs(found.astype(np.float64) - reference.grads[flat]).max()
        worst = max(worst, float(difference) / scale)
    if not worst <= TOLERANCE:
        raise PlanError(
            f"the variant {session.scheme} is off by {worst:.2g}",
            why=f"it and the float32 step must agree within {TOLERANCE:g} at the same weights",
            repair="report this with the plan",
        )
