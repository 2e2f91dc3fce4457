"""Bugs put into the product on purpose, to see that the harness sees them.

Each is one that somebody makes; several heal in accuracy, so that no test of a model finds
them. ``PLANTED`` says of each what may find it: the name of a check in ``account`` or ``world``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from faults.storms import PLAN, Reach

from kellet import kernels
from kellet.sdk import trainer
from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.device import DeviceMachine
from kellet.sdk.protocol.messages import Grant
from kellet.sdk.store import Store
from kellet.server import algorithms
from kellet.server.counting import Counting
from kellet.server.ledger import Ledger
from kellet.server.opened import OpenRound
from kellet.server.sums import ExactSum

__all__ = ["PLANTED", "Planted"]

DERIVED = Scaffold(local_lr=0.125, batch_size=1, local_steps=3)
CODED = Scaffold(local_lr=0.125, batch_size=1, local_steps=3, delta_c="q8")


@dataclass(frozen=True)
class Planted:
    """``plant`` puts the bug in; ``found_by``: the checks that may see it."""

    plant: Callable[[Reach], AbstractContextManager[None]]
    found_by: frozenset[str]
    algorithm: FedAvg = DERIVED
    buffers: bool = False  # whether it needs a fleet that counts late updates


@contextmanager
def _swapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """In the block ``owner.name`` is what ``make`` makes of it."""
    real = owner.__dict__[name]
    setattr(owner, name, make(real))
    try:
        yield
    finally:
        setattr(owner, name, real)


@contextmanager
def commit_before_the_receipt(_world: Reach) -> Iterator[None]:
    def make(save: Any) -> Any:
        def save_pending(self: Store, *args: Any, **how: Any) -> None:
            save(self, *args, **how)
            with self._db.transaction():
                self._db.run(
                    "update device set control ="
                    " coalesce((select control_next from outbox), control)"
                )

        return save_pending

    with _swapped(Store, "save_pending", make):
        yield


@contextmanager
def clear_the_outbox_when_sent(_world: Reach) -> Iterator[None]:
    """A PUBACK is taken for a receipt: the broker has it, and who knows who else."""

    def make(control: Any) -> Any:
        def _control(self: DeviceMachine, message: Any, now: float) -> Any:
            effects = control(self, message, now)
            if isinstance(message, Grant) and self._upload:
                self._store.settle(self._upload.pending.uid, counted=True, reason="sent")
                self._upload = None
            return effects

        return _control

    with _swapped(DeviceMachine, "_control", make):
        yield


@contextmanager
def divide_by_the_cohort(world: Reach) -> Iterator[None]:
    """c = C / |S|: the factor |S|/N of the paper's line 17 is lost."""

    def make(announced: Any) -> Any:
        return lambda control, members, *others: announced(
            control, min(members, world().config.target), *others
        )

    with _swapped(algorithms, "announced_control", make):
        yield


@contextmanager
def count_without_dedupe(_world: Reach) -> Iterator[None]:
    def forget(_receipt: Any) -> Any:
        return lambda self, uid: None

    def only_late(fault: Any) -> Any:
        def _offer_fault(self: Counting, *args: Any) -> str:
            reason: str = fault(self, *args)
            return "" if reason in ("sequence", "duplicate") else reason

        return _offer_fault

    def replace_row(write: Any) -> Any:
        def write_update(self: Ledger, row: Any, member: Any = None) -> None:
            self._db.run("delete from updates where uid = ?", row.uid)
            write(self, row, member)

        return write_update

    with (
        _swapped(Ledger, "receipt", forget),
        _swapped(Counting, "_offer_fault", only_late),
        _swapped(Ledger, "write_update", replace_row),
    ):
        yield


@contextmanager
def add_in_floats(_world: Reach) -> Iterator[None]:
    """Sums in float32, in the order of arrival."""

    def make(_add: Any) -> Any:
        def add(self: ExactSum, values: Any, weight: int = 1) -> None:
            total = self.mean(1).astype(np.float32) + np.float32(weight) * values
            q = kernels.to_grid(total.astype(np.float32))
            self.lo[:] = q.view(np.uint64)
            self.hi[:] = q >> 63

        return add

    with _swapped(ExactSum, "add", make):
        yield


@contextmanager
def checkpoint_a_stale_snapshot(world: Reach) -> Iterator[None]:
    """The closing of a round writes C as it was at the round's beginning."""
    begun: dict[str, bytes] = {}

    def opened(open_round: Any) -> Any:
        def begin(self: Ledger, *args: Any, **how: Any) -> None:
            begun["C"] = world().server.machine.control.dump()
            open_round(self, *args, **how)

        return begin

    def closed(close_round: Any) -> Any:
        def close(self: Ledger, *args: Any, **how: Any) -> None:
            close_round(self, *args, **(how | {"control": begun.get("C", how["control"])}))

        return close

    with _swapped(Ledger, "open_round", opened), _swapped(Ledger, "close_round", closed):
        yield


@contextmanager
def derive_from_the_current_control(_world: Reach) -> Iterator[None]:
    """c as it is when the update comes, where c_a of its announcement belongs."""

    def make(delta_c: Any) -> Any:
        def _delta_c(self: Counting, opened: Any, body: Any) -> Any:
            if opened is None or opened.terms.control is None:
                return delta_c(self, opened, body)
            terms = opened.terms
            now = algorithms.announced_control(self.control, terms.round.members)
            opened.terms = replace(terms, control=now)
            try:
                return delta_c(self, opened, body)
            finally:
                opened.terms = terms

        return _delta_c

    with _swapped(Counting, "_delta_c", make):
        yield


@contextmanager
def advance_by_the_exact_value(_world: Reach) -> Iterator[None]:
    """c_i follows what was computed, not what the server decodes."""

    def make(change: Any) -> Any:
        def _control_change(derived: Any, controls: Any, full: Any, **how: Any) -> Any:
            _, sent = change(derived, controls, full, **how)
            return derived, sent

        return _control_change

    with _swapped(trainer, "_control_change", make):
        yield


@contextmanager
def feed_back_errors_of_delta_c(_world: Reach) -> Iterator[None]:
    """What rounding left out of delta_c is added to the next, though c_i remembers it already."""
    left_out = np.zeros(PLAN.n_train, np.float32)

    def make(code: Any) -> Any:
        def with_memory(codec: Any, wanted: Any, layout: Any, **how: Any) -> Any:
            coded = code(codec, wanted, layout, **how)
            if "feedback" in how:
                return coded  # that is delta_y
            wanted = wanted + left_out
            coded = code(codec, wanted, layout, **how)
            left_out[:] = wanted - coded.decoded[:]
            return coded._replace(decoded=wanted.astype(np.float32))

        return with_memory

    with _swapped(trainer, "code", make):
        yield


@contextmanager
def weigh_delta_c_by_staleness(_world: Reach) -> Iterator[None]:
    """Who comes late in a round moves C by half of it."""

    def make(delta_c: Any) -> Any:
        def _delta_c(self: Counting, opened: Any, body: Any) -> Any:
            change = delta_c(self, opened, body)
            if change is not None and opened is not None and opened.cohort.counted:
                return change // 2
            return change

        return _delta_c

    with _swapped(Counting, "_delta_c", make):
        yield


@contextmanager
def weigh_delta_c_of_late_updates(_world: Reach) -> Iterator[None]:
    """delta_c has the weight of delta_y, where it was made for an earlier announcement."""

    def make(delta_c: Any) -> Any:
        def _delta_c(self: Counting, opened: Any, body: Any) -> Any:
            change = delta_c(self, opened, body)
            named = opened.named(body.header.base) if opened else None
            if change is None or named is None:
                return change
            return change * algorithms.staleness_weight(named.stale) // algorithms.FRESH

        return _delta_c

    with _swapped(Counting, "_delta_c", make):
        yield


@contextmanager
def derive_from_the_open_announcement(_world: Reach) -> Iterator[None]:
    """c of the round that is open, where c_a of the announcement that is named belongs."""

    def make(terms_of: Any) -> Any:
        return lambda self, base: replace(terms_of(self, base), control=self.terms.control)

    with _swapped(OpenRound, "terms_of", make):
        yield


@contextmanager
def train_before_settling(_world: Reach) -> Iterator[None]:
    """An asked device trains though its last update waits; the new one takes the outbox."""

    def make(go_on: Any) -> Any:
        def _next(self: DeviceMachine, now: float) -> Any:
            pending, announced = self._store.unsent(), self._announced
            if not pending or not announced or self._leaving or pending.base == announced.base:
                return go_on(self, now)
            self._upload = None
            look, self._store.unsent = self._store.unsent, lambda: None  # type: ignore
            try:
                return go_on(self, now)
            finally:
                self._store.unsent = look  # type: ignore[method-assign]

        return _next

    def overwrite(save: Any) -> Any:
        def save_pending(self: Store, *args: Any, **how: Any) -> None:
            self._db.run("delete from outbox")
            self._db.run("delete from residual_next")
            save(self, *args, **how)

        return save_pending

    with (
        _swapped(DeviceMachine, "_next", make),
        _swapped(Store, "save_pending", overwrite),
    ):
        yield


def _found_by(*checks: str) -> frozenset[str]:
    return frozenset(checks)


GAP = _found_by("gap", "control")
PLANTED = {
    "c_i committed before the receipt": Planted(commit_before_the_receipt, GAP),
    "outbox cleared when sent": Planted(clear_the_outbox_when_sent, GAP | {"receipt"}),
    "c divided by the cohort": Planted(divide_by_the_cohort, _found_by("announced")),
    "no dedupe": Planted(count_without_dedupe, GAP | {"sums", "counted twice"}),
    "float sums in the order of arrival": Planted(add_in_floats, _found_by("sums", "model")),
    "a stale checkpoint": Planted(checkpoint_a_stale_snapshot, GAP),
    "delta_c derived from the current c": Planted(derive_from_the_current_control, GAP | {"audit"}),
    "c_i advanced by the exact value": Planted(advance_by_the_exact_value, GAP, CODED),
    "error feedback on delta_c": Planted(feed_back_errors_of_delta_c, GAP, CODED),
    "delta_c weighted by staleness": Planted(weigh_delta_c_by_staleness, GAP),
    "delta_c of late updates weighted": Planted(
        weigh_delta_c_of_late_updates, GAP | {"audit"}, buffers=True
    ),
    "delta_c derived from the open announcement": Planted(
        derive_from_the_open_announcement, GAP | {"audit"}, buffers=True
    ),
    "training before settling": Planted(train_before_settling, GAP | {"unsettled"}),
}
