"""The personal models in a device's database: of no concern to the fleet, and never sent.

``save`` replaces a model when its training ends, whatever becomes of the round's update, in
one transaction, and notes the announcement that it was trained for: after a crash, or after
enrolling anew, a round that is trained again finds it done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.controls import VectorBytes
from kellet.sdk.durable import Database, room
from kellet.sdk.heap import parts

__all__ = ["SHELF_SCHEMA", "Shelf", "StoredPersonal"]

F32 = NDArray[np.float32]

SHELF_SCHEMA = """
create table if not exists personal (
    id integer primary key,
    plan blob not null,
    base blob not null,
    round integer not null,
    v blob not null
)"""
_PLANS = 2  # whose models are kept: those that were trained last


@dataclass(frozen=True, slots=True)
class StoredPersonal:
    """v, float32 [n], as it lies on the disk. ``base``: the announcement it was trained for."""

    database: Database
    row: int
    n: int
    base: bytes
    round: int

    def read_into(self, out: F32) -> None:
        """Read v, in parts, to where it is wanted: float32 [n]."""
        with self.database.blob("personal", "v", self.row) as blob:
            for part in parts(self.n):
                out[part] = np.frombuffer(blob.read(4 * (part.stop - part.start)), "<f4")


class Shelf:
    """The device's own model of each of the plans that it trained last."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def find(self, plan: bytes) -> StoredPersonal | None:
        """The model of that plan; None before the first."""
        row = self._db.one("select id, length(v), base, round from personal where plan = ?", plan)
        return None if row is None else StoredPersonal(self._db, row[0], row[1] // 4, *row[2:])

    def plans(self) -> list[bytes]:
        """The plans that there is a model of, the one that was trained last first."""
        return [plan for (plan,) in self._db.all("select plan from personal order by id desc")]

    def save(self, plan: bytes, base: bytes, round_: int, v: F32) -> None:
        """Put v, float32 [n], in the place of the model of that plan: all of it or nothing."""
        data = VectorBytes(v, "<f4")
        slot, value = room(data)
        with self._db.transaction():
            self._db.run("delete from personal where plan = ?", plan)
            self._db.run(
                f"insert into personal (plan, base, round, v) values (?, ?, ?, {slot})",
                plan,
                base,
                round_,
                value,
            )
            row = self._db.one("select last_insert_rowid()")
            assert row is not None
            self._db.fill("personal", "v", row[0], data)
            self._db.run(
                "delete from personal where id not in"
                f" (select id from personal order by id desc limit {_PLANS})"
            )
