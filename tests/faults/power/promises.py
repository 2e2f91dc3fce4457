"""What ``work`` was promised, held against what a cut has left."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
from faults.power.cuts import Cut, Outcome, try_cuts, wrong_databases
from faults.power.history import History
from faults.power.work import EPOCH, N
from support.on_disk import DeviceDisk, audit

from kellet.sdk.errors import StorageError
from kellet.sdk.store import Store
from kellet.server.ledger import Ledger

__all__ = ["cut_work"]


def cut_work(history: History, scratch: Path, *, count: int, seed: int) -> Outcome:
    """Cut, and look for lost receipts, damaged databases, and a control gap."""

    def wrong(cut: Cut) -> Iterator[str]:
        yield from wrong_databases(history, scratch, cut)
        yield from _broken(history, scratch, cut.moment)

    return try_cuts(history, scratch, wrong, count=count, seed=seed)


def _broken(history: History, scratch: Path, moment: int) -> Iterator[str]:
    """Does the product start over it, and is all there?"""
    server, *devices = history.disks
    try:
        for name in devices:
            Store(name, scratch / name / "device.db").close()
        Ledger(scratch / server / "ledger.db").close()
        yield from _unbalanced(history, scratch, moment)
    except (StorageError, sqlite3.DatabaseError) as error:
        yield f"the product does not start: {error}"


def _unbalanced(history: History, scratch: Path, moment: int) -> Iterator[str]:
    """Receipted updates that are lost, and controls that differ, once each device has settled."""
    server, *devices = history.disks
    with closing(sqlite3.connect(scratch / server / "ledger.db")) as ledger:
        held = dict(ledger.execute("select uid, counted from updates").fetchall())
        audits = dict(ledger.execute("select device, audit from members").fetchall())
        waiting = ledger.execute("select uid from updates where spooled = 1").fetchall()
        fleet = ledger.execute("select control from fleet").fetchone()
    for uid, was_counted in history.sent(moment).items():
        if held.get(uid) != was_counted:
            yield f"the receipted update {uid.hex()} is lost"
    if fleet is None:
        return
    gap = np.frombuffer(fleet[0], np.int64).copy()
    for (uid,) in waiting:
        gap += history.deltas[uid]
    counted = {uid for uid, was_counted in held.items() if was_counted}
    for name in devices:
        control = DeviceDisk(scratch / name, N).control(counted)
        gap -= control
        if name in audits and audit(control, EPOCH) != int(audits[name]):
            yield f"the control of {name} is not the ledger's"
    if gap.any():
        yield f"the control gap is {np.abs(gap).max()}"
