"""A plan with all three roles: trained weights, a running mean, a frozen scale."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper
from support.toy_plans import model, value

from kellet.sdk.authoring.bundle import Tensor, write_bundle
from kellet.sdk.plan import InputSpec, LabelSpec, Plan

__all__ = ["buffered"]


def buffered(gradient: str = "grad::w", buffer: str = "buffer::seen") -> Plan:
    """loss = mean of (scale * x) @ w; the buffer is .5 * seen + .5 * mean(x).

    x: [b, 2]. Tensors ``w`` [2] trained, ``seen`` [2] a buffer, ``scale`` [1] frozen at 2.
    ``gradient`` and ``buffer``: what the step calls its outputs.
    """
    batch, labels = value("batch", "b", 2), value("labels", "b", dtype=TensorProto.INT64)
    tensors = [value("w", 2), value("seen", 2), value("scale", 1)]
    scores = [
        helper.make_node("Mul", ["batch", "scale"], ["scaled"]),
        helper.make_node("MatMul", ["scaled", "w"], ["scores"]),
    ]
    step = [
        *scores,
        helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0),
        helper.make_node("ReduceMean", ["scaled", "rows"], [gradient], keepdims=0),
        helper.make_node("ReduceMean", ["batch", "rows"], ["mean"], keepdims=0),
        helper.make_node("Add", ["seen", "mean"], ["both"]),
        helper.make_node("Mul", ["both", "half"], [buffer]),
    ]
    return Plan.open(
        write_bundle(
            name="buffered",
            step=model(
                step,
                [batch, labels, *tensors],
                [value("loss"), value(gradient, 2), value(buffer, 2)],
                {"rows": np.array([0]), "half": np.float32(0.5)},
            ),
            # The evaluation takes all tensors, whether it reads them or not.
            evaluate=model(
                [*scores[:1], helper.make_node("MatMul", ["scaled", "w"], ["dot"]), *_unread()],
                [batch, *tensors],
                [value("scores", "b")],
                {"zero": np.float32(0)},
            ),
            tensors=[
                Tensor("w", np.array([1, 1], np.float32)),
                Tensor("seen", np.array([0, 8], np.float32), role="buffer"),
                Tensor("scale", np.array([2], np.float32), role="frozen"),
            ],
            input=InputSpec(shape=(2,)),
            labels=LabelSpec(),
            loss="custom",
            example_batch=np.array([[1, 2], [3, 4]], np.float32),
            example_labels=np.zeros(2, np.int64),
        )
    )


def _unread() -> list[object]:
    return [
        helper.make_node("ReduceSum", ["seen"], ["total"], keepdims=0),
        helper.make_node("Mul", ["total", "zero"], ["nothing"]),
        helper.make_node("Add", ["dot", "nothing"], ["scores"]),
    ]
