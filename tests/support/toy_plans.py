"""Small plans with gradients that can be worked by hand, from hand-made graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

from kellet.sdk.authoring.bundle import Tensor, write_bundle
from kellet.sdk.plan import InputSpec, LabelSpec, Plan

__all__ = ["linear_loss", "model", "quadratic", "softmax_regression", "stateful", "value"]

OPSET = 18
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def linear_loss(n: int, offset: float = 0.0, *, initial: ArrayLike = 0.0) -> Plan:
    """loss = mean over the batch of x @ w, plus ``offset``; the gradient is mean(x).

    x: [b, n]. One tensor ``w`` [n]. Labels are ignored. Scores are x @ w + offset, [b].
    """
    x, y, w = value("batch", "b", n), value("labels", "b", dtype=INT64), value("w", n)
    scores = [
        helper.make_node("MatMul", ["batch", "w"], ["dot"]),
        helper.make_node("Add", ["dot", "offset"], ["scores"]),
    ]
    means = [
        helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0),
        helper.make_node("ReduceMean", ["batch", "rows"], ["grad::w"], keepdims=0),
    ]
    constants = {"offset": np.float32(offset)}
    return _plan(
        f"linear_loss_{n}",
        step=model(
            [*scores, *means],
            [x, y, w],
            [value("loss"), value("grad::w", n)],
            {**constants, "rows": np.array([0])},
        ),
        evaluate=model(scores, [x, w], [value("scores", "b")], constants),
        tensors=[Tensor("w", _filled(initial, n))],
        shape=(n,),
    )


def quadratic(*, initial: float = 0.0) -> Plan:
    """loss = mean of 0.5 * a * (w - b)^2; the gradient is mean of a * (w - b).

    x: [b, 2], the columns a and b. One tensor ``w`` [1]. Labels are ignored.
    Scores are the losses of the rows, [b, 1].
    """
    x, y, w = value("batch", "b", 2), value("labels", "b", dtype=INT64), value("w", 1)
    scores = [
        helper.make_node("Split", ["batch"], ["a", "target"], axis=1, num_outputs=2),
        helper.make_node("Sub", ["w", "target"], ["away"]),
        helper.make_node("Mul", ["a", "away"], ["pull"]),
        helper.make_node("Mul", ["pull", "away"], ["twice"]),
        helper.make_node("Mul", ["twice", "half"], ["scores"]),
    ]
    means = [
        helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0),
        helper.make_node("ReduceMean", ["pull", "rows"], ["grad::w"], keepdims=0),
    ]
    half = {"half": np.float32(0.5)}
    return _plan(
        "quadratic",
        step=model(
            [*scores, *means],
            [x, y, w],
            [value("loss"), value("grad::w", 1)],
            {**half, "rows": np.array([0])},
        ),
        evaluate=model(scores, [x, w], [value("scores", "b", 1)], half),
        tensors=[Tensor("w", _filled(initial, 1))],
        shape=(2,),
    )


def softmax_regression(d: int, c: int, *, initial: ArrayLike = 0.0) -> Plan:
    """Mean cross-entropy of x @ W.T + b; the vector is W.ravel() then b.

    x: [b, d], y: int64 [b]. Tensors ``W`` [c, d] and ``b`` [c].
    """
    x, y = value("batch", "b", d), value("labels", "b", dtype=INT64)
    parameters = [value("W", c, d), value("b", c)]
    scores = [helper.make_node("Gemm", ["batch", "W", "b"], ["scores"], transB=1)]
    gradient = [
        helper.make_node("LogSoftmax", ["scores"], ["log_p"], axis=1),
        helper.make_node("OneHot", ["labels", "classes", "off_on"], ["truth"], axis=-1),
        helper.make_node("Mul", ["log_p", "truth"], ["hit"]),
        helper.make_node("ReduceSum", ["hit", "columns"], ["log_hit"], keepdims=0),
        helper.make_node("ReduceMean", ["log_hit"], ["minus_loss"], keepdims=0),
        helper.make_node("Neg", ["minus_loss"], ["loss"]),
        helper.make_node("Shape", ["labels"], ["count"]),
        helper.make_node("Cast", ["count"], ["rows"], to=FLOAT),
        helper.make_node("Exp", ["log_p"], ["p"]),
        helper.make_node("Sub", ["p", "truth"], ["error"]),
        helper.make_node("Div", ["error", "rows"], ["mean_error"]),
        helper.make_node("Gemm", ["mean_error", "batch"], ["grad::W"], transA=1),
        helper.make_node("ReduceSum", ["mean_error", "batch_axis"], ["grad::b"], keepdims=0),
    ]
    constants = {
        "classes": np.array([c]),
        "off_on": np.array([0, 1], np.float32),
        "columns": np.array([1]),
        "batch_axis": np.array([0]),
    }
    flat = _filled(initial, c * d + c)
    return _plan(
        f"softmax_{d}_{c}",
        step=model(
            [*scores, *gradient],
            [x, y, *parameters],
            [value("loss"), value("grad::W", c, d), value("grad::b", c)],
            constants,
        ),
        evaluate=model(scores, [x, *parameters], [value("scores", "b", c)]),
        tensors=[Tensor("W", flat[: c * d].reshape(c, d)), Tensor("b", flat[c * d :])],
        shape=(d,),
        classes=c,
    )


def stateful(*, w: float = 1.0, m: float = 0.0, f: float = 1.0) -> Plan:
    """One tensor of each role: ``w`` [1] train, ``m`` [1] buffer, ``f`` [1] frozen.

    loss = mean of (x - m) * w * f, the gradient mean(x - m) * f, both with the
    old m; the new m is half the old one plus half of mean(x). x: [b, 1].
    Labels are ignored. Scores are (x - m) * w * f, [b, 1].
    """
    x, y = value("batch", "b", 1), value("labels", "b", dtype=INT64)
    tensors = [value("w", 1), value("m", 1), value("f", 1)]
    scores = [
        helper.make_node("Sub", ["batch", "m"], ["away"]),
        helper.make_node("Mul", ["away", "f"], ["scaled"]),
        helper.make_node("Mul", ["scaled", "w"], ["scores"]),
    ]
    means = [
        helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0),
        helper.make_node("ReduceMean", ["scaled", "rows"], ["grad::w"], keepdims=0),
        helper.make_node("ReduceMean", ["batch", "rows"], ["mean"], keepdims=0),
        helper.make_node("Add", ["m", "mean"], ["sum"]),
        helper.make_node("Mul", ["sum", "half"], ["buffer::m"]),
    ]
    return _plan(
        "stateful",
        step=model(
            [*scores, *means],
            [x, y, *tensors],
            [value("loss"), value("grad::w", 1), value("buffer::m", 1)],
            {"half": np.float32(0.5), "rows": np.array([0])},
        ),
        evaluate=model(scores, [x, *tensors], [value("scores", "b", 1)]),
        tensors=[
            Tensor("f", _filled(f, 1), "frozen"),
            Tensor("m", _filled(m, 1), "buffer"),
            Tensor("w", _filled(w, 1)),
        ],
        shape=(1,),
    )


def value(name: str, *shape: int | str, dtype: int = FLOAT) -> onnx.ValueInfoProto:
    """A typed input or output; a string is a free axis."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: dict[str, np.ndarray | np.generic] | None = None,
) -> bytes:
    """An encoded, checked model of opset 18."""
    initializers = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in (constants or {}).items()
    ]
    graph = helper.make_graph(list(nodes), "toy", list(inputs), list(outputs), initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.checker.check_model(made)
    return made.SerializeToString(deterministic=True)


def _plan(
    name: str,
    *,
    step: bytes,
    evaluate: bytes,
    tensors: list[Tensor],
    shape: tuple[int, ...],
    classes: int | None = None,
) -> Plan:
    numbers = np.random.default_rng(0)
    return Plan.open(
        write_bundle(
            name=name,
            step=step,
            evaluate=evaluate,
            tensors=tensors,
            input=InputSpec(shape=shape),
            labels=LabelSpec(classes=classes),
            loss="custom" if classes is None else "cross_entropy",
            example_batch=numbers.standard_normal((3, *shape)).astype(np.float32),
            example_labels=np.arange(3) % (classes or 3),
        )
    )


def _filled(initial: ArrayLike, n: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(initial, np.float32), (n,)).copy()
