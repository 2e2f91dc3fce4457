"""A plan's int8 step graph in onnxruntime: the loss and its gradient at int8 weights.

No float32 copy of the weights exists: the graph decodes each one right before
each of its consumers, and drops it after. Values, scales and gradients are
bound to the graph once, by address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kellet.kernels import Int8Rows, aligned, dequantise, quantise, row_layout
from kellet.sdk.controls import FloatVector
from kellet.sdk.errors import PlanError, UsageError
from kellet.sdk.plan.schemes import Int8Layout, Int8Tensor, check_scheme
from kellet.sdk.plan.session import StepGraph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kellet.sdk.plan.plan import Plan

__all__ = ["HEADROOM", "Int8Session"]

HEADROOM = 1.08  # a row begins at 117.6 of 127 units, where the steps' kernel refits it too

_Array = np.ndarray[Any, np.dtype[Any]]
_Floats = np.ndarray[Any, np.dtype[np.float32]]


class Int8Session:
    """Gradients of a plan's loss at int8 weights. Not for use from two threads at once.

    ``weights`` holds the trained tensors of two dimensions and more, in the
    plan's order, [n_weights], and ``weight_grads`` [n_weights] their gradients.
    ``rest`` [n_rest] holds the tensors that stay float32, in the plan's order
    (trained, buffers, frozen), and ``rest_grads`` [n_rest_train] the gradients
    of its first ones. Change weights and rest in place; all stay the same
    arrays for the life of the session. ``layout`` says where each tensor lies.
    ``scratch`` [n_update] is room for a vector where no gradient is needed any more:
    ``weight_grads`` lies in it.

    Frozen tensors are those of the plan, quantised once, to the nearest. A new
    session stands at the plan's initial parameters, loaded with the seed 0.
    """

    weights: Int8Rows
    weight_grads: _Floats
    rest: _Floats
    rest_grads: _Floats
    scratch: _Floats

    def __init__(self, plan: Plan, scheme: str, *, threads: int = 1) -> None:
        self.plan = plan
        self.scheme = check_scheme(scheme)
        graph = plan.variant_graph(self.scheme)
        self.layout = layout = Int8Layout.of(plan.manifest, self.scheme)
        self.weights = _rows(layout.weights)
        self.scratch = aligned(plan.n_update)
        self.weight_grads = self.scratch[: layout.n_weights]
        self.rest = aligned(layout.n_rest)
        self.rest_grads = aligned(layout.n_rest_train)
        self._frozen = _rows(layout.frozen)
        initial = plan.initial_view()
        for held in layout.frozen:
            _fill(self._frozen, held, quantise(_aligned(initial[held.flat]), _layout(held)))
            plan.release()
        for floats in layout.rest:
            if floats.tensor.role == "frozen":
                self.rest[floats.rest] = initial[floats.flat]
        self.load(initial, seed=0)
        plan.release()
        gradients = {held.tensor.name: self.weight_grads[held.values] for held in layout.weights}
        for floats in layout.rest:
            if floats.tensor.role == "train":
                gradients[floats.tensor.name] = self.rest_grads[floats.rest]
        self._graph = StepGraph(
            graph,
            plan.manifest,
            threads,
            inputs=self.inputs(),
            gradients=gradients,
            buffers=self.rest[layout.n_rest_train : layout.n_rest_update],
            lean=True,
        )

    def load(self, x: FloatVector, *, seed: int) -> None:
        """Take the model ``x``, float32 [n_update] or [n_params].

        Each weight is rounded stochastically by the hash of (seed, the place of
        its tensor among the int8 ones, its index in the tensor); a row's largest
        magnitude becomes 117.6 units. Frozen elements of ``x`` are not looked
        at. Raises ``UsageError`` for another vector, and ``PlanError`` where a
        row is not finite or too large for a scale.
        """
        if x.dtype != np.float32 or x.shape not in ((self.plan.n_update,), (self.plan.n_params,)):
            raise _wrong("model", x, f"[{self.plan.n_update}] or [{self.plan.n_params}]")
        for place, held in enumerate(self.layout.weights):
            try:
                rows = quantise(
                    _aligned(x[held.flat]),
                    _layout(held),
                    headroom=HEADROOM,
                    seed=seed,
                    step=place,
                )
            except ValueError as error:
                raise PlanError(
                    f"{held.tensor.name} cannot be held in int8",
                    why=str(error),
                    repair="take a model that is finite; training at a smaller rate gives one",
                ) from None
            _fill(self.weights, held, rows)
            self.plan.release()  # the part of the file that was read, where x lies in it
        for floats in self.layout.rest:
            if floats.tensor.role != "frozen":
                self.rest[floats.rest] = x[floats.flat]

    def step(self, x: _Array, y: _Array) -> float:
        """Return the batch's mean loss and fill ``weight_grads`` and ``rest_grads``.

        x: [b, *input], y: [b, *label], of the plan's dtypes, any b >= 1.
        Float buffers in ``rest`` take their new values. Nothing else is
        written. Raises ``DataError`` for a batch of another shape or dtype.
        """
        return self._graph.run(x, y)

    def gradients(self) -> Iterator[tuple[slice, _Floats]]:
        """Yield (place in the flat vector, gradient) of each trained tensor, as views."""
        for held in self.layout.weights:
            yield held.flat, self.weight_grads[held.values]
        for floats in self.layout.rest:
            if floats.tensor.role == "train":
                yield floats.flat, self.rest_grads[floats.rest]

    def frozen(self) -> Iterator[tuple[Int8Tensor, _Floats]]:
        """Yield each frozen tensor that is held in int8, decoded."""
        for held in self.layout.frozen:
            yield held, dequantise(_part(self._frozen, held))

    def inputs(self) -> dict[str, _Array]:
        """Return what the graph takes beside the batch, as views, by the inputs' names."""
        found: dict[str, _Array] = {}
        for rows, tensors in (
            (self.weights, self.layout.weights),
            (self._frozen, self.layout.frozen),
        ):
            for held in tensors:
                values = rows.values[held.values].reshape(held.shape)
                found[f"int8::{held.tensor.name}"] = values
                found[f"scales::{held.tensor.name}"] = rows.scales[held.scales]
        for floats in self.layout.rest:
            value = self.rest[floats.rest].reshape(floats.tensor.shape)
            found[floats.tensor.name] = value
        return found

    def decoded(self, out: _Floats | None = None) -> _Floats:
        """Return the model as float32 [n_update], in the plan's order, into ``out`` if given."""
        if out is None:
            out = aligned(self.plan.n_update)
        if out.dtype != np.float32 or out.shape != (self.plan.n_update,):
            raise _wrong("result", out, f"[{self.plan.n_update}]")
        for held in self.layout.weights:
            dequantise(_part(self.weights, held), out[held.flat])
        for floats in self.layout.rest:
            if floats.tensor.role != "frozen":
                out[floats.flat] = self.rest[floats.rest]
        return out


def _rows(tensors: Sequence[Int8Tensor]) -> Int8Rows:
    """Room for ``tensors``, as zeros."""
    values = aligned(sum(held.tensor.size for held in tensors), np.int8)
    scales = aligned(sum(held.shape[0] for held in tensors))
    scales[:] = 1
    return Int8Rows(values, scales, row_layout(held.shape for held in tensors))


def _aligned(value: _Floats) -> _Floats:
    """What lies in a file may begin anywhere."""
    return np.require(value, np.float32, ["C", "A"])


def _layout(held: Int8Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(held.shape, np.int64)


def _part(rows: Int8Rows, held: Int8Tensor) -> Int8Rows:
    return Int8Rows(rows.values[held.values], rows.scales[held.scales], _layout(held))


def _fill(rows: Int8Rows, held: Int8Tensor, given: Int8Rows) -> None:
    rows.values[held.values] = given.values
    rows.scales[held.scales] = given.scales


def _wrong(what: str, found: _Array | FloatVector, wanted: str) -> UsageError:
    return UsageError(
        f"the {what} is {found.dtype} {list(found.shape)}",
        why=f"this plan's is {wanted}",
        repair="pass a vector of this plan, in its order",
    )
