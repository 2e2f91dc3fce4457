"""A plan that trains fewer tensors than the one it comes from.

The others become frozen: they leave the gradient, the control variate and the
update. The backward pass ends before the first tensor that is still trained,
for what no output needs is left out of the graph.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from kellet.sdk.errors import PlanError, UsageError
from kellet.sdk.plan import Manifest, Plan, TensorSpec, selftest
from kellet.sdk.plan.bundle import step_inputs, step_outputs, write_contents
from kellet.sdk.plan.manifest import layout
from kellet.sdk.plan.schemes import FLOAT32
from kellet.sdk.variants.derive import add_variants, unfit
from kellet.sdk.variants.graph import Graph
from kellet.sdk.variants.memory import activation_peaks

__all__ = ["chosen", "sparse"]

TOLERANCE = 1e-5


def sparse(
    plan: Plan, train: Sequence[str] = (), *, last: int | None = None, biases: bool = False
) -> Plan:
    """Return a plan in which only some of the trained tensors are trained.

    These are the tensors whose names match one of ``train`` (names, or globs
    such as "head.*"), those of the ``last`` k layers, and with ``biases`` all
    biases; what any of the three names is trained. A layer is the tensors that
    share their name up to the last dot. The others become frozen. Buffers stay
    buffers, those of frozen layers too: a batch norm in training goes on
    normalising by its batch. Of the variants of ``plan``, those that still
    apply are derived anew.

    Raises ``UsageError`` where nothing is chosen, a glob matches no trained
    tensor or there are not so many layers, and ``PlanError`` should the new
    plan not give the gradients of the old one within 1e-5.
    """
    wanted = chosen(plan.manifest, train, last=last, biases=biases)
    roles = [
        (t.name, t.shape, "frozen" if t.role == "train" and t.name not in wanted else t.role,
         "mean" if t.role == "train" else t.aggregate)
        for t in plan.manifest.tensors
    ]  # fmt: skip
    draft = _moved(plan, layout(roles))
    _check_against(plan, draft)
    held = [scheme for scheme in plan.schemes[1:] if not unfit(draft, scheme)]
    return add_variants(draft, held)


def chosen(
    manifest: Manifest, train: Sequence[str], *, last: int | None = None, biases: bool = False
) -> frozenset[str]:
    """Return the names of the trained tensors that are chosen; see `sparse`."""
    names = [tensor.name for tensor in manifest.tensors if tensor.role == "train"]
    wanted: set[str] = set()
    for glob in train:
        matching = fnmatch.filter(names, glob)
        if not matching:
            raise UsageError(
                f"no trained tensor is called {glob!r}",
                why=f"the plan {manifest.name} trains {_some(names)}",
                repair="correct the name; * stands for anything",
            )
        wanted.update(matching)
    if last is not None:
        layers = list(dict.fromkeys(_layer(name) for name in names))
        if not 1 <= last <= len(layers):
            raise UsageError(
                f"the last {last} layers are asked for",
                why=f"the plan {manifest.name} trains {len(layers)}: {_some(layers)}",
                repair=f"ask for 1 to {len(layers)}",
            )
        wanted.update(name for name in names if _layer(name) in layers[-last:])
    if biases:
        found = [t.name for t in manifest.tensors if t.role == "train" and _is_bias(t)]
        if not found:
            raise UsageError(
                "the biases are asked for",
                why=f"the plan {manifest.name} trains none, but {_some(names)}",
                repair="name what is to be trained",
            )
        wanted.update(found)
    if not wanted:
        raise UsageError(
            "nothing is chosen to be trained",
            why="a plan trains at least one tensor",
            repair="name tensors, a number of last layers, or the biases",
        )
    return frozenset(wanted)


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or name


def _is_bias(tensor: TensorSpec) -> bool:
    """torch calls them bias, and bias_ih_l0 and the like in recurrent cells."""
    own = tensor.name.rpartition(".")[2]
    return len(tensor.shape) == 1 and (own in ("b", "bias") or own.startswith("bias_"))


def _some(names: Collection[str]) -> str:
    shown = list(names)[:8]
    return ", ".join(shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _moved(plan: Plan, tensors: tuple[TensorSpec, ...]) -> Plan:
    """Return the plan with its tensors laid out as ``tensors``, and what follows from that."""
    manifest = msgspec.structs.replace(plan.manifest, tensors=tensors, variants=())
    before = plan.views(plan.initial())
    initial = np.concatenate([before[tensor.name].ravel() for tensor in tensors])
    step, evaluate = Graph(plan.step_graph), Graph(plan.eval_graph)
    step_graph = step.encoded(
        {name: step.inputs[name] for name in step_inputs(manifest, FLOAT32)},
        step_outputs(manifest),
    )
    eval_graph = evaluate.encoded(
        {name: evaluate.inputs[name] for name in ("batch", *(t.name for t in tensors))}
    )
    x, y = plan.expected.batch.array(), plan.expected.labels.array()
    manifest = msgspec.structs.replace(manifest, memory=activation_peaks(step_graph, before, x, y))
    blank = msgspec.structs.replace(plan.expected, gradient_at=(), gradient=(), variants=())
    draft = Plan(write_contents(manifest, step_graph, eval_graph, initial, blank))
    expected = selftest.record(draft, x, y)
    return Plan(write_contents(manifest, step_graph, eval_graph, initial, expected))


def _check_against(plan: Plan, draft: Plan) -> None:
    """Hold the new plan's loss and gradients against the old one's."""
    x, y = plan.expected.batch.array(), plan.expected.labels.array()
    old, new = plan.session(), draft.session()
    wanted = old.step(x, y)
    worst = abs(new.step(x, y) - wanted) / max(1.0, abs(wanted))
    before, found = plan.views(old.grads), draft.views(new.grads)
    scale = max(float(np.abs(before[name]).max()) for name in found)
    for name, gradient in found.items():
        difference = float(np.abs(gradient - before[name]).max())
        worst = max(worst, difference / max(scale, 1e-30))
    if not worst <= TOLERANCE:
        raise PlanError(
            f"the sparse plan is off by {worst:.2g}",
            why=f"it and the whole plan must agree within {TOLERANCE:g}",
            repair="report this with the plan",
        )
