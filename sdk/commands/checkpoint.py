"""An aggregator's ``model.onnx``, as ``kellet plan show`` tells of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kellet.sdk.errors import PlanError

__all__ = ["describe", "is_model", "words"]

_BUNDLE_MAGIC = b"PK"


def is_model(source: str) -> bool:
    """Whether ``source`` is an ONNX file rather than a plan, by its name and first bytes."""
    if not source.endswith(".onnx") or not os.path.isfile(source):
        return False
    with open(source, "rb") as file:
        return file.read(2) != _BUNDLE_MAGIC


def describe(path: Path) -> dict[str, Any]:
    """Inputs, outputs and origin of a model. Raises ``PlanError`` for what cannot be run."""
    import onnxruntime
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, InvalidProtobuf

    from kellet.sdk.plan.onnx_wire import inspect_graph

    raw = path.read_bytes()
    inspect_graph(raw)  # no operator of another domain, no file that it would have read
    try:
        session = onnxruntime.InferenceSession(raw, providers=["CPUExecutionProvider"])
    except (Fail, InvalidGraph, InvalidProtobuf) as error:
        raise PlanError(
            f"onnxruntime {onnxruntime.__version__} does not take {path}",
            why=str(error).strip().splitlines()[0][:300],
            repair="update onnxruntime, or let the aggregator write the model again",
        ) from None
    metadata = session.get_modelmeta().custom_metadata_map
    if "kellet.plan" not in metadata:
        raise PlanError(
            f"{path} is not a model that Kellet trained",
            why="it does not say which plan it belongs to",
            repair="give the model.onnx of an aggregator's state directory",
        )
    labels = metadata.get("kellet.labels", "")
    return {
        "model": str(path),
        "bytes": len(raw),
        "trained_from": metadata["kellet.plan"],
        "inputs": [_value(value) for value in session.get_inputs()],
        "outputs": [_value(value) for value in session.get_outputs()],
        "labels": labels.split("\n") if labels else [],
    }


def words(facts: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{facts['model']}: a trained model of {facts['bytes']:,} bytes"]
    lines.append(f"  plan      {facts['trained_from']}")
    for kind in ("inputs", "outputs"):
        for value in facts[kind]:
            lines.append(f"  {kind[:-1]:<9} {value['name']}: {value['type']} {value['shape']}")
    if facts["labels"]:
        lines.append(f"  labels    {', '.join(facts['labels'])}")
    lines.append("  run it    onnxruntime.InferenceSession(FILE).run(None, {'batch': x})")
    return "\n".join(lines)


def _value(value: Any) -> dict[str, Any]:
    return {"name": value.name, "type": value.type, "shape": list(value.shape)}
