"""A benchmark's case, and the check that comes before its clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.operands import Draw, Operands, close, copied, same_bits
from kellet import kernels
from kellet.kernels import _backend

__all__ = ["REFERENCE", "Call", "Case", "Prepare", "computing_with", "validate"]

Call = Callable[[], Any]
Prepare = Callable[[Operands], Call]

REFERENCE = "numpy"


@dataclass(frozen=True)
class Case:
    """One way to call a public kernel, and what else computes the same.

    ``size`` is bytes an element: the least that the contract lets move, each
    operand read and each result written once; a vector that must be looked through before
    anything is written (clipping, the grid's check) counts twice. ``peers`` prepare calls that
    work on the same operands; the reference stands in where NumPy has no plainer expression.
    ``twin`` names the float32 step that an int8 step replaces.
    """

    name: str
    kernel: str
    size: float
    operands: Callable[[Draw], Operands]
    ours: Prepare
    peers: Mapping[str, Prepare] = field(default_factory=dict)
    twin: Prepare | None = None
    bound: tuple[str, ...] = ()  # the arrays of the library's own function, to time it alone


@contextmanager
def computing_with(name: str) -> Iterator[None]:
    """Compute with this backend for a while; the reference with one thread.

    ``use_backend`` would read the library and its sources again at every return.
    """
    active, threads = _backend.active(), kernels.threads()
    if name == active.name:
        yield
        return
    kernels.use_backend(name)
    kernels.set_threads(1)
    try:
        yield
    finally:
        _backend._active = active
        kernels.set_threads(threads)


def validate(case: Case, operands: Operands, peers: Mapping[str, Prepare]) -> None:
    """Raise AssertionError unless ours has the reference's bits, and each peer its values.

    Every contender starts from its own copy; results and all operands are compared. A peer may
    round differently: fused multiplications, another order.
    """

    def outcome(prepare: Prepare) -> tuple[Any, Operands]:
        own = copied(operands)
        return prepare(own)(), own

    with computing_with(REFERENCE):
        expected = outcome(case.ours)
    if not same_bits(outcome(case.ours), expected):
        raise AssertionError(f"{case.name}: the bits are not the reference's")
    for name, prepare in peers.items():
        if not close(outcome(prepare), expected):
            raise AssertionError(f"{case.name}: {name} computes something else")
