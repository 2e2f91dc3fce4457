"""``kellet plan``: show, check, export and derive what devices train."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from kellet.sdk.commands.fit import FitOptions
from kellet.sdk.commands.options import Output, check_output
from kellet.sdk.commands.personal import personal
from kellet.sdk.console import Console
from kellet.sdk.errors import ExtraMissing, PlanError, UsageError

if TYPE_CHECKING:
    from kellet.sdk.plan import Plan

__all__ = ["command"]

command = App(name="plan", help="Show, check, export or derive a plan: what a device trains.")
command.command(personal)
MIB = 1 << 20


@command.command
def show(plan: str, /, *, digest: str | None = None, json: bool = False) -> None:
    """Say what a plan trains, or what a trained model takes.

    Parameters
    ----------
    plan
        A .kplan file, a built-in plan (wisdm or har), or an aggregator's model.onnx.
    digest
        SHA-256 that the plan must have.
    json
        Answer with one JSON object.
    """
    from kellet.sdk.commands import checkpoint

    facts: dict[str, Any]
    if checkpoint.is_model(plan):
        facts = checkpoint.describe(Path(plan))
        text = checkpoint.words(facts)
    else:
        facts = _facts(_open(plan, digest))
        text = _words(facts)
    with Console(json=json) as console:
        console.result(facts, text)


@command.command
def check(
    plan: str,
    /,
    *,
    digest: str | None = None,
    fit: FitOptions | None = None,
    json: bool = False,
) -> int:
    """Verify a plan, run its self-tests here, and say how a class of device can train it.

    The self-tests are one for each scheme. Ends with 4 where the plan does not fit.

    Parameters
    ----------
    plan
        A .kplan file or a built-in plan (wisdm or har).
    digest
        SHA-256 that the plan must have.
    json
        Answer with one JSON object.
    """
    opened = _open(plan, digest)
    verdict = (fit or FitOptions()).judge(opened)
    result = opened.self_test()
    variants = [opened.self_test(scheme) for scheme in opened.schemes[1:]]
    import onnxruntime

    from kellet.kernels import backend

    facts = {
        "plan": opened.manifest.name,
        "id": opened.hex_id,
        "good": True,
        "loss": result.loss,
        "loss_error": result.loss_error,
        "gradient_error": result.gradient_error,
        "score_error": result.score_error,
        "seconds": round(result.seconds, 4),
        "variants": {
            tested.scheme: {
                "loss": tested.loss,
                "loss_error": tested.loss_error,
                "gradient_error": tested.gradient_error,
                "seconds": round(tested.seconds, 4),
            }
            for tested in variants
        },
        "kernels": backend(),
        "onnxruntime": onnxruntime.__version__,
        "memory_bytes": _memory(opened),
        "fit": verdict and verdict.facts(),
    }
    lines = [
        f"{facts['plan']} is sound: this machine computes what the plan's author did.",
        f"  largest error  {max(result.loss_error, result.gradient_error, result.score_error):.1e}"
        " of loss, gradient and scores",
        *(
            f"  {tested.scheme:<13}  {max(tested.loss_error, tested.gradient_error):.1e}"
            for tested in variants
        ),
        f"  kernels        {facts['kernels']}",
        f"  onnxruntime    {facts['onnxruntime']}",
        "  memory         " + _memory_words(_memory(opened)),
        *(verdict.words() if verdict else ["this machine is of no class: name one by --profile"]),
    ]
    with Console(json=json) as console:
        console.result(facts, "\n".join(lines))
    return PlanError.exit_code if verdict and not verdict.fits else 0


@command.command
def export(
    function: str,
    /,
    *,
    output: Output,
    name: str | None = None,
    labels: str = "",
    columns: str = "",
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    statistics: Literal["mean", "local"] = "mean",
    licence: str = "",
    author: str = "",
    description: str = "",
    force: bool = False,
    json: bool = False,
) -> None:
    """Turn a PyTorch model into a plan, checked against torch (needs the extra authoring).

    Parameters
    ----------
    function
        MODULE:FUNCTION, called without arguments, returns
        (model, loss, example batch, example labels); loss may be None for cross-entropy.
    output
        File to write, such as mymodel.kplan.
    name
        The plan's name; the file's, unless given.
    labels
        Names of the classes, with commas between them.
    columns
        Names of the input's columns, with commas between them.
    unit
        What the input's numbers are measured in.
    low
        Least value of the input.
    high
        Largest value of the input.
    statistics
        Whether running statistics are averaged, or stay local.
    licence
        Licence of the model.
    author
        Who made it.
    description
        What it is for.
    force
        Write over a file that is there.
    json
        Answer with one JSON object.
    """
    from kellet.sdk.commands.functions import call, find_function

    check_output(output, force=force)
    if importlib.util.find_spec("torch") is None:  # or the user's own import would say it worse
        raise ExtraMissing("authoring", "torch")
    made = call(find_function(function, "FUNCTION"), function)
    if not isinstance(made, tuple) or len(made) != 4:
        raise UsageError(
            f"{function} returned a {type(made).__name__}",
            why="an export needs four things",
            repair="return model, loss, example_batch, example_labels",
        )
    from kellet.sdk.authoring import export as export_plan

    plan = export_plan(
        *made,
        name=name or output.stem,
        label_names=_listed(labels),
        columns=_listed(columns),
        unit=unit,
        low=low,
        high=high,
        statistics=statistics,
        licence=licence,
        author=author,
        description=description,
    )
    _written(plan, output, json)


@command.command
def derive(
    plan: str,
    /,
    *,
    output: Output,
    schemes: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    train: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    last: int | None = None,
    biases: bool = False,
    digest: str | None = None,
    force: bool = False,
    json: bool = False,
) -> None:
    """Make a plan of another: with int8 variants, or training fewer tensors (needs onnx).

    Parameters
    ----------
    plan
        A .kplan file or a built-in plan (wisdm or har).
    output
        File to write, such as mymodel.kplan.
    schemes
        The variants that the new plan has (w8.row, w8.block64, w8.row+a8); all that apply,
        unless given. f32, which every plan has, alone gives a plan without variants.
    train
        Names or globs of the tensors to train, such as "head.*"; the others are frozen.
    last
        Train the last so many layers.
    biases
        Train the biases.
    digest
        SHA-256 that the plan must have.
    force
        Write over a file that is there.
    json
        Answer with one JSON object.
    """
    from kellet.sdk.variants import add_variants, sparse

    check_output(output, force=force)
    opened = _open(plan, digest)
    if train or last is not None or biases:
        opened = sparse(opened, train or (), last=last, biases=biases)
    _written(add_variants(opened, schemes), output, json)


def _written(plan: Plan, output: Path, json: bool) -> None:
    """Write a new plan; say what it is, and which variants it cannot have."""
    from kellet.sdk.durable import write_file
    from kellet.sdk.plan import SCHEMES
    from kellet.sdk.variants import unfit

    write_file(output, plan.raw)
    absent = {s: why for s in SCHEMES if s not in plan.schemes and (why := unfit(plan, s))}
    facts = _facts(plan) | {"file": str(output), "left_out": absent}
    lines = [_words(facts), *(f"left out {scheme}: {why}" for scheme, why in absent.items())]
    with Console(json=json) as console:
        console.result(facts, "\n".join([*lines, f"written to {output}"]))


def _open(plan: str, digest: str | None) -> Plan:
    from kellet.sdk.plan import Plan

    return Plan.open(plan, digest=digest)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text else ()


def _memory(plan: Plan) -> dict[int, int]:
    """Bytes at work in a training step by batch size: activations, parameters, gradients."""
    vectors = 4 * (plan.n_params + plan.n_train)
    return {batch: vectors + size for batch, size in sorted(plan.manifest.memory.items())}


def _schemes(plan: Plan) -> dict[str, dict[str, Any]]:
    """Of each scheme: bytes of the parameters as held, and bytes at work in a step, by batch."""
    from kellet.sdk.plan import Int8Layout

    found: dict[str, dict[str, Any]] = {
        "f32/1": {"parameter_bytes": 4 * plan.n_params, "memory_bytes": _memory(plan)}
    }
    for variant in plan.manifest.variants:
        if variant.scheme not in plan.schemes:
            continue  # a newer Kellet's
        held = Int8Layout.of(plan.manifest, variant.scheme).state_bytes
        vectors = held + 4 * plan.n_train
        memory = {batch: vectors + size for batch, size in sorted(variant.memory.items())}
        found[variant.scheme] = {"parameter_bytes": held, "memory_bytes": memory}
    return found


def _memory_words(memory: dict[int, int]) -> str:
    return ", ".join(f"{size / MIB:.2f} MiB at batch {b}" for b, size in memory.items())


def _facts(plan: Plan) -> dict[str, Any]:
    manifest = plan.manifest
    return {
        "plan": manifest.name,
        "id": plan.hex_id,
        "bytes": plan.size,
        "parameters": plan.n_params,
        "trained": plan.n_train,
        "buffers": plan.n_update - plan.n_train,
        "frozen": plan.n_params - plan.n_update,
        "input": {
            "shape": list(manifest.input.shape),
            "dtype": manifest.input.dtype,
            "unit": manifest.input.unit,
            "columns": list(manifest.input.columns),
            "low": manifest.input.low,
            "high": manifest.input.high,
        },
        "labels": {
            "classes": manifest.labels.classes,
            "names": list(manifest.labels.names),
            "dtype": manifest.labels.dtype,
            "shape": list(manifest.labels.shape),
        },
        "loss": manifest.loss,
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "role": tensor.role,
                "aggregate": tensor.aggregate,
            }
            for tensor in manifest.tensors
        ],
        "memory_bytes": _memory(plan),
        "schemes": _schemes(plan),
        "update_bytes": 4 * plan.n_update,
        "opset": manifest.opset,
        "min_onnxruntime": manifest.min_onnxruntime,
        "licence": manifest.licence,
        "author": manifest.author,
        "description": manifest.description,
    }


def _words(facts: dict[str, Any]) -> str:
    columns = facts["input"]["columns"]
    names = facts["labels"]["names"]
    counts = ", ".join(f"{facts[k]:,} {k}" for k in ("trained", "buffers", "frozen") if facts[k])
    rows = {
        "id": facts["id"],
        "about": facts["description"],
        "input": f"{facts['input']['dtype']} [n{_axes(facts['input']['shape'])}]"
        + (f" {facts['input']['unit']}" if facts["input"]["unit"] else "")
        + (f": {', '.join(columns[:4])}{', ...' if len(columns) > 4 else ''}" if columns else ""),
        "labels": f"{facts['labels']['dtype']} [n{_axes(facts['labels']['shape'])}]"
        + (f": {', '.join(f'{i} {name}' for i, name in enumerate(names))}" if names else ""),
        "loss": facts["loss"],
        "parameters": f"{facts['parameters']:,} ({counts})",
        "an update": f"{facts['update_bytes']:,} bytes",
        "a step": _memory_words(facts["memory_bytes"]),
        "needs": f"onnxruntime {facts['min_onnxruntime']} (opset {facts['opset']})",
        "licence": facts["licence"],
        "author": facts["author"],
    }
    lines = [f"{facts['plan']}: a plan of {facts['bytes']:,} bytes"]
    lines += [f"  {key:<11} {value}" for key, value in rows.items() if value]
    lines.append("  schemes")
    lines += [
        f"    {scheme:<13} {s['parameter_bytes']:,} bytes of parameters, a step "
        + _memory_words(s["memory_bytes"])
        for scheme, s in facts["schemes"].items()
    ]
    lines.append("  tensors")
    lines += [f"    {t['role']:<7} {t['name']:<24} {t['shape']}" for t in facts["tensors"]]
    return "\n".join(lines)


def _axes(shape: list[int]) -> str:
    return "".join(f", {size}" for size in shape)
