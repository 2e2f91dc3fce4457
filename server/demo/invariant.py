"""The invariant, read from the disks of a fleet that has stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.plan import Plan
from kellet.sdk.store import Store
from kellet.server.aggregator import AggregatorMachine
from kellet.server.blobs import Blobs
from kellet.server.config import FleetConfig
from kellet.server.ledger import Ledger
from kellet.server.sums import control_gap
from kellet.server.uploads import Spool

__all__ = ["Audit", "audit_fleet"]


@dataclass(frozen=True)
class Audit:
    """``gap``: max |C - sum(c_i)| in steps of the grid, over all committed controls.

    ``unsettled``: updates that wait for a receipt; those that the ledger counted are
    committed all the same. ``ghosts``: memberships whose installation is gone; what they
    added to C is on no disk, so with ghosts the gap says nothing.
    """

    gap: int
    unsettled: int
    ghosts: int


def audit_fleet(server: Path, devices: Mapping[str, Path], plan: Plan) -> Audit:
    """Hold the aggregator's C, as it would be after a restart, against every device's c_i.

    ``server`` and ``devices``: state directories that no process uses any more.
    """
    ledger = Ledger(server / "ledger.db")
    try:
        machine = AggregatorMachine(
            FleetConfig(),
            plan,
            ledger=ledger,
            blobs=Blobs(server / "blobs"),
            spool=Spool(server / "spool"),
            clock=time.time,
        )
        committed = []
        unsettled = 0
        for device, state in devices.items():
            store = Store(device, state / "device.db")
            try:
                committed.append(_committed(store, ledger, machine.epoch, plan.n_train))
                unsettled += store.pending_uid() is not None
            finally:
                store.close()
        ghosts = sum(member.state == "ghost" for member in ledger.members())
        return Audit(control_gap(machine.control, committed), unsettled, ghosts)
    finally:
        ledger.close()


def _committed(store: Store, ledger: Ledger, epoch: int, n: int) -> NDArray[np.int64]:
    """c_i as counted: the stored one, or the pending one if the ledger has counted it."""
    if store.epoch != epoch:
        return np.zeros(n, np.int64)
    pending = store.pending()
    if pending is not None and pending.c_i_next is not None:
        receipt = ledger.receipt(pending.uid)
        if receipt is not None and receipt.counted:
            return pending.c_i_next[:]
    return store.control(n)
