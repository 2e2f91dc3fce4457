"""How steep its clients' losses are to FedProx: G of its bound on drift.

A proximal step with ``local_lr * mu <= 1``, and an implicit one with any, keeps y within G/mu of
the round's model x, where no gradient is longer than G: y - x shrinks by the share lr*mu before it
moves by lr*g.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from kellet import kernels
from kellet.sdk.algorithms import FedProx, register
from kellet.sdk.algorithms.averaging import Step, Work

__all__ = ["MeasuredFedProx", "Steepest", "measured"]


@dataclass
class Steepest:
    """``norm``: of the longest mini-batch gradient that any step took."""

    norm: float = 0.0


_open: list[Steepest] = []


@contextmanager
def measured() -> Iterator[Steepest]:
    """Measure the steps that `MeasuredFedProx` takes in this process meanwhile."""
    steepest = Steepest()
    _open.append(steepest)
    try:
        yield steepest
    finally:
        _open.remove(steepest)


@register
@dataclass(frozen=True, kw_only=True)
class MeasuredFedProx(FedProx):
    """FedProx, bit for bit, whose gradients are measured."""

    name: ClassVar[str] = "fedprox_measured"

    def stepper(self, work: Work) -> Step:
        step = super().stepper(work)

        def measured_step(rate: float) -> None:
            norm = kernels.norm(work.g)
            for steepest in _open:
                steepest.norm = max(steepest.norm, norm)
            step(rate)

        return measured_step
