"""Cut the power at any moment of a history, and hold what is left against what was promised."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
from faults.power.history import History, state_of
from faults.power.platter import WAYS, Platter
from faults.power.work import EPOCH, N
from support.on_disk import DeviceDisk, audit

from kellet.sdk.errors import StorageError
from kellet.sdk.store import Store
from kellet.server.ledger import Ledger

__all__ = ["Outcome", "cut"]


@dataclass
class Outcome:
    """``cuts`` by what was cut and in which way; what was found wrong, cut by cut."""

    cuts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def cut(history: History, scratch: Path, *, count: int, seed: int) -> Outcome:
    """Cut ``count`` times: a device's power, the server's, or everybody's at once."""
    luck = Random(seed)
    moments = sorted(luck.randint(1, len(history.events)) for _ in range(count))
    everyone = ("server", *history.devices)
    platter, outcome, at = Platter(), Outcome(), 0
    for number, moment in enumerate(moments):
        for event in history.events[at:moment]:
            platter.take(event)
        at = moment
        hit = luck.choice([*((name,) for name in everyone), everyone])
        way = luck.choice(WAYS)
        outcome.cuts[f"{'+'.join(hit)}, {way} left"] += 1
        ways = {name: way if name in hit else "all" for name in everyone}
        _lay_out(history, platter, scratch, ways, luck)
        story = f"cut {number} after event {moment} of {len(history.events)}, {hit}, {way}: "
        outcome.wrong += [story + each for each in _wrong(history, scratch, hit, moment)]
    return outcome


def _lay_out(
    history: History, platter: Platter, scratch: Path, ways: dict[str, str], luck: Random
) -> None:
    """Put each disk's files where the next start looks for them."""
    shutil.rmtree(scratch, ignore_errors=True)
    for name, way in ways.items():
        (scratch / name).mkdir(parents=True)
        for path, content in platter.after_cut(history.root / name, way, luck).items():
            (scratch / name / Path(path).name).write_bytes(content)


def _wrong(history: History, scratch: Path, hit: tuple[str, ...], moment: int) -> Iterator[str]:
    """What is not as it was promised."""
    for path in history.commits:
        here = scratch / path.relative_to(history.root)
        if here.parent.name not in hit:
            continue
        try:
            with closing(sqlite3.connect(here)) as database:
                (health,) = database.execute("pragma integrity_check").fetchone()
                state = state_of(database)
        except sqlite3.DatabaseError as error:
            yield f"{here.parent.name} cannot be read: {error}"
            return
        if health != "ok":
            yield f"{here.parent.name} is damaged: {health}"
        if state not in history.allowed(path, moment):
            yield f"{here.parent.name} is neither as before nor as after"
    try:
        for name in history.devices:
            Store(name, scratch / name / "device.db").close()
        Ledger(scratch / "server" / "ledger.db").close()
        yield from _unbalanced(history, scratch, moment)
    except (StorageError, sqlite3.DatabaseError) as error:
        yield f"the product does not start over it: {error}"


def _unbalanced(history: History, scratch: Path, moment: int) -> Iterator[str]:
    """Receipted updates that are lost, and controls that differ, once each device has settled."""
    with closing(sqlite3.connect(scratch / "server" / "ledger.db")) as ledger:
        held = dict(ledger.execute("select uid, counted from updates").fetchall())
        audits = dict(ledger.execute("select device, audit from members").fetchall())
        waiting = ledger.execute("select uid from updates where spooled = 1").fetchall()
        fleet = ledger.execute("select control from fleet").fetchone()
    for uid, counted in history.sent(moment).items():
        if held.get(uid) != counted:
            yield f"the receipted update {uid.hex()} is lost"
    if fleet is None:
        return
    gap = np.frombuffer(fleet[0], np.int64).copy()
    for (uid,) in waiting:
        gap += history.deltas[uid]
    counted = {uid for uid, was_counted in held.items() if was_counted}
    for name in history.devices:
        control = DeviceDisk(scratch / name, N).control(counted)
        gap -= control
        if name in audits and audit(control, EPOCH) != int(audits[name]):
            yield f"the control of {name} is not the ledger's"
    if gap.any():
        yield f"the control gap is {np.abs(gap).max()}"
