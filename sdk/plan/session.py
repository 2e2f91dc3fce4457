"""A plan's step graph in onnxruntime: the loss and its gradient at a point.

Parameters and gradients are bound to the graph once, by address, so a step
copies neither. A small batch is copied into arrays that are bound already: to
bind it would take as long as the step of a small model. onnxruntime is imported
when the first session is made.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from kellet.kernels import aligned
from kellet.sdk.errors import DataError, PlanError
from kellet.sdk.plan.bundle import step_outputs
from kellet.sdk.plan.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnxruntime import InferenceSession

    from kellet.sdk.plan.plan import Plan

__all__ = ["GradientSession", "StepGraph", "open_session", "run_bound"]

_Array = np.ndarray[Any, np.dtype[Any]]

_SMALL = 1 << 18  # bytes of a batch that is copied
_COPIES = 1 << 20  # bytes of all arrays for such batches, which differ in their shapes


def open_session(
    graph: memoryview, manifest: Manifest, threads: int, *, lean: bool = False
) -> InferenceSession:
    """Open a graph of a plan on the CPU, deterministic.

    The runtime's arena stays on: it holds a convolutional net's peak 20 %
    lower than malloc does, and runs a recurrent net three times faster.
    ``lean`` is for graphs that decode int8 weights: equal decodings stay apart
    whatever the release (1.20 and 1.32 leave them apart anyway), so that none
    lives longer than one node; and no plan of memory is kept for a batch size,
    which holds a second arena (8 of 124 MB for five million weights, 9 of 91
    for a small convolutional net) for a step some percent faster.

    Raises ``PlanError`` where onnxruntime is too old or does not take the graph.
    """
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    if _release(onnxruntime.__version__) < _release(manifest.min_onnxruntime):
        raise PlanError(
            f"the plan needs onnxruntime {manifest.min_onnxruntime}",
            why=f"{onnxruntime.__version__} is installed",
            repair=f'pip install "onnxruntime>={manifest.min_onnxruntime}"',
        )
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = not lean
    options.use_deterministic_compute = True
    options.log_severity_level = 4  # errors come as exceptions; printing them too is noise
    try:
        return onnxruntime.InferenceSession(
            bytes(graph),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers={"CommonSubexpressionElimination"} if lean else set(),
        )
    except (
        native.Fail,
        native.InvalidGraph,
        native.InvalidProtobuf,
        native.InvalidArgument,
        native.NotImplemented,
        native.RuntimeException,
    ) as error:
        raise PlanError(
            f"onnxruntime {onnxruntime.__version__} does not take the plan's graph",
            why=_first_line(error),
            repair="update onnxruntime, or export the plan again",
        ) from None


def run_bound(session: InferenceSession, binding: Any) -> None:
    """Run a bound session. Raises ``DataError`` where the data makes a step fail."""
    try:
        session.run_with_iobinding(binding)
    except RuntimeError as error:  # a bound run raises no other, whatever went wrong
        raise DataError(
            "the plan does not run on this batch",
            why=_first_line(error),
            repair="check the batch with Plan.check_data; "
            "if it passes there, the plan's self-test tells whether the plan is sound",
        ) from None


def address(array: _Array) -> int:
    """Return where the first element of ``array`` lies."""
    return int(array.__array_interface__["data"][0])


class _Bound:
    """A binding of the graph, with the batch that it reads."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self.x: _Array
        self.y: _Array

    def read(self, x: _Array, y: _Array) -> None:
        """Bind these arrays by address, and keep them alive."""
        self.x, self.y = x, y
        self.binding.bind_input("batch", "cpu", 0, x.dtype, x.shape, address(x))
        self.binding.bind_input("labels", "cpu", 0, y.dtype, y.shape, address(y))


class StepGraph:
    """A plan's step, bound by address: it reads and writes the caller's arrays.

    ``inputs``: what the graph takes beside the batch. ``gradients``: by tensor, where each lands.
    ``buffers``: the plan's float buffers, one after the other, as `run` renews them.
    """

    def __init__(
        self,
        graph: memoryview,
        manifest: Manifest,
        threads: int,
        *,
        inputs: Mapping[str, _Array],
        gradients: Mapping[str, _Array],
        buffers: _Array,
        lean: bool = False,
    ) -> None:
        self._manifest = manifest
        self._loss = np.zeros((), np.float32)
        # The runtime may read a buffer after it has written the new value of
        # it, so new buffers land beside the vector and are copied afterwards.
        self._buffers, self._new_buffers = buffers, np.zeros(len(buffers), np.float32)
        self._inputs = dict(inputs)  # by address: they must stay alive
        self._to = {"loss": (self._loss, ())} | self._outputs(gradients)
        self._session = open_session(graph, manifest, threads, lean=lean)
        self._large = self._bind()
        self._small: dict[tuple[Any, ...], _Bound] = {}  # by shapes and types of the batch

    def run(self, x: _Array, y: _Array) -> float:
        """Return the batch's mean loss; gradients and buffers are in their arrays."""
        bound = self._small.get((x.shape, x.dtype, y.shape, y.dtype))
        if bound is None:
            bound = self._take(x, y)
        else:
            np.copyto(bound.x, x)
            np.copyto(bound.y, y)
        run_bound(self._session, bound.binding)
        if self._new_buffers.size:
            self._buffers[:] = self._new_buffers
        return float(self._loss)

    def _take(self, x: _Array, y: _Array) -> _Bound:
        """Check a batch and bind it, or a copy for it and the next ones like it."""
        x = _batch("x", x, self._manifest.input.dtype, self._manifest.input.shape)
        y = _batch("y", y, self._manifest.labels.dtype, self._manifest.labels.shape)
        if len(x) != len(y):
            raise DataError(
                f"the batch has {len(x)} rows and {len(y)} labels",
                why="each row needs one label",
                repair="slice x and y alike",
            )
        if x.nbytes + y.nbytes > _SMALL:
            self._large.read(x, y)
            return self._large
        copies = sum(bound.x.nbytes + bound.y.nbytes for bound in self._small.values())
        if copies + x.nbytes + y.nbytes > _COPIES:
            self._small.clear()
        bound = self._small[x.shape, x.dtype, y.shape, y.dtype] = self._bind()
        bound.read(x.copy(), y.copy())
        return bound

    def _bind(self) -> _Bound:
        """Bind everything but the batch."""
        binding = self._session.io_binding()
        for name, value in self._inputs.items():
            binding.bind_input(name, "cpu", 0, value.dtype, value.shape, address(value))
        for name in step_outputs(self._manifest):
            array, shape = self._to[name]
            binding.bind_output(name, "cpu", 0, np.float32, shape, address(array))
        return _Bound(binding)

    def _outputs(self, gradients: Mapping[str, _Array]) -> dict[str, tuple[_Array, Any]]:
        found: dict[str, tuple[_Array, Any]] = {}
        start = 0
        for tensor in self._manifest.tensors:
            if tensor.role == "train":
                found[f"grad::{tensor.name}"] = (gradients[tensor.name], tensor.shape)
            elif tensor.role == "buffer":
                fresh = self._new_buffers[start : start + tensor.size]
                found[f"buffer::{tensor.name}"] = (fresh, tensor.shape)
                start += tensor.size
        return found


class GradientSession:
    """Gradients of a plan's loss. Not for use from two threads at once.

    ``params`` is the float32 vector [n_params] at which `step` evaluates;
    change it in place. ``grads`` is the float32 vector [n_train] that `step`
    fills. Both stay the same arrays for the life of the session.
    """

    params: np.ndarray[Any, np.dtype[np.float32]]
    grads: np.ndarray[Any, np.dtype[np.float32]]

    def __init__(self, plan: Plan, *, threads: int = 1) -> None:
        self.plan = plan
        self.params = plan.initial()
        plan.release()
        self.grads = aligned(plan.n_train)
        self._graph = StepGraph(
            plan.step_graph,
            plan.manifest,
            threads,
            inputs=plan.views(self.params),
            gradients=plan.views(self.grads),
            buffers=self.params[plan.n_train : plan.n_update],
        )

    def step(self, x: _Array, y: _Array) -> float:
        """Return the batch's mean loss at ``params`` and fill ``grads``.

        x: [b, *input], y: [b, *label], of the plan's dtypes, any b >= 1.
        Float buffers in ``params`` take their new values. Nothing else is
        written. Raises ``DataError`` for a batch of another shape or dtype.
        """
        return self._graph.run(x, y)


def _batch(what: str, array: _Array, dtype: str, shape: tuple[int, ...]) -> _Array:
    if array.dtype != dtype or array.ndim == 0 or array.shape[1:] != shape or len(array) == 0:
        axes = ", ".join(["b", *map(str, shape)])
        raise DataError(
            f"{what} of the batch is {array.dtype} {list(array.shape)}",
            why=f"the plan takes {dtype} [{axes}] with b >= 1",
            repair="pass the whole data through Plan.check_data once, then slice it",
        )
    return np.ascontiguousarray(array)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:300]
