"""What a device must not forget: its control variate, its outbox, its receipts.

SQLite in WAL mode with ``synchronous=FULL``: a committed transaction survives a
power cut. There are two transactions that matter. ``save_pending``, after
training, puts the update and the control it would lead to on the disk together.
``settle``, on the receipt, promotes that control if the update was counted, and
clears the outbox. Nothing else moves c_i but a new control epoch, or enrolling
anew. The residual of error feedback goes the same way: it moves where the update
that it belongs to was counted.

A personal model is of no concern to the fleet, and has a transaction of its own
(``kellet.sdk.shelf``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.controls import Parts, VectorBytes
from kellet.sdk.durable import Database, room
from kellet.sdk.errors import StorageError
from kellet.sdk.heap import parts
from kellet.sdk.releases import RELEASES_SCHEMA, Releases
from kellet.sdk.shelf import SHELF_SCHEMA, Shelf

__all__ = [
    "FORMAT",
    "Identity",
    "Memory",
    "Pending",
    "Store",
    "StoredBody",
    "StoredControl",
    "unpack_control",
]

I64 = NDArray[np.int64]
Buffer = bytes | memoryview | NDArray[np.float32]

_SCHEMA = """
create table if not exists device (
    id integer primary key check (id = 1),
    name text not null,
    nonce blob not null,
    incarnation integer not null,
    seq integer not null,
    epoch integer,
    control integer,
    last_base blob,
    kept_plan blob,
    kept blob
);
create table if not exists outbox (
    id integer primary key check (id = 1),
    uid blob not null,
    seq integer not null,
    round integer not null,
    epoch integer not null,
    base blob not null,
    sha256 blob not null,
    control_next integer,
    body blob not null
);
create table if not exists controls (
    id integer primary key,
    c_i blob not null
);
create table if not exists receipts (
    seq integer not null,
    uid blob not null,
    round integer not null,
    counted integer not null,
    reason text not null
);
create table if not exists residual (
    id integer primary key check (id = 1),
    plan blob not null,
    left_out blob not null
);
create table if not exists residual_next (
    id integer primary key check (id = 1),
    plan blob not null,
    left_out blob not null
);
create table if not exists memory (
    id integer primary key check (id = 1),
    plan blob not null,
    algorithm text not null,
    rule text not null,
    vector blob not null
);
create table if not exists memory_next (
    id integer primary key check (id = 1),
    plan blob not null,
    algorithm text not null,
    rule text not null,
    vector blob not null
);
"""
# Controls lie in rows of their own, and which is c_i says a number: SQLite rewrites a whole row,
# in memory, to change one column of it. Format 2 had no table of personal models.
FORMAT = 3
_OLDER = (2,)
_CURRENT = "select control from device"


@dataclass(frozen=True, slots=True)
class Identity:
    """``nonce`` names this installation; ``incarnation`` counts its starts."""

    device: str
    nonce: bytes
    incarnation: int


@dataclass(frozen=True, slots=True)
class Pending:
    """The one update that is not settled.

    ``body``: bytes for any slice. ``c_i_next``: int64 [n_train], the control if the update is
    counted, an array for any slice; None where the algorithm has none.
    """

    uid: bytes
    seq: int
    round: int
    epoch: int
    base: bytes
    sha256: bytes
    body: bytes | StoredBody
    c_i_next: Parts[np.int64] | None


@dataclass(frozen=True, slots=True)
class Memory:
    """What an algorithm keeps: float32 [n_train], and when it is committed.

    ``rule``: ``receipt``, if the update is counted, or ``training``, with the update.
    """

    algorithm: str
    vector: Buffer
    rule: str


@dataclass(frozen=True, slots=True)
class StoredBody:
    """The pending update as it lies in the outbox: each slice is read when it is sent."""

    store: Store
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self.size)
        return self.store.read_body(start, stop)


@dataclass(frozen=True, slots=True)
class StoredControl:
    """c_i as it lies on the disk, int64 on the grid: each slice is read when it is asked for."""

    store: Store
    n: int

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, part: slice) -> I64:
        start, stop, _ = part.indices(self.n)
        return self.store.read_control(start, stop)


class Store:
    """A device's durable state, in ``path`` or (None) in memory.

    ``personal``: this device's own models. Opening counts as a start: the incarnation grows by
    one. Raises ``StorageError``
    where the file cannot be used, is of another device, or is damaged. ``nonce`` names
    a new installation (16 bytes; random where it is not given).
    """

    def __init__(
        self, device: str, path: Path | None = None, *, nonce: bytes | None = None
    ) -> None:
        schema = _SCHEMA + SHELF_SCHEMA + ";" + RELEASES_SCHEMA
        self._db = Database(path, schema, FORMAT, grown_from=_OLDER)
        self.personal = Shelf(self._db)
        self.releases = Releases(self._db)
        with self._db.transaction():
            row = self._db.one("select name from device")
            if row is None:
                self._db.run(
                    "insert into device values (1, ?, ?, 0, 0, null, null, null, null, null)",
                    device,
                    nonce or os.urandom(16),
                )
            elif row[0] != device:
                raise StorageError(
                    f"{self._db.where} belongs to device {row[0]!r}, not {device!r}",
                    why="two devices cannot share a control variate",
                    repair="give each device a --state directory of its own",
                )
            self._db.run("update device set incarnation = incarnation + 1")

    def _row(self, columns: str) -> tuple[Any, ...]:
        row = self._db.one(f"select {columns} from device")
        assert row is not None
        return row

    @property
    def _facts(self) -> tuple[Any, ...]:
        """What machines ask for at every message, in one question."""
        return self._row("name, nonce, incarnation, seq, epoch, last_base")

    @property
    def identity(self) -> Identity:
        return Identity(*self._facts[:3])

    @property
    def seq(self) -> int:
        """The last settled sequence."""
        seq: int = self._facts[3]
        return seq

    @property
    def epoch(self) -> int | None:
        """The control epoch of c_i; None before the first."""
        epoch: int | None = self._facts[4]
        return epoch

    @property
    def last_base(self) -> bytes | None:
        """The announcement whose update was settled last: it is not trained for again."""
        base: bytes | None = self._facts[5]
        return base

    def control(self, n_train: int) -> I64:
        """c_i, int64 [n_train] on the grid; zeros for a newcomer.

        ``StorageError`` where another plan's control is stored.
        """
        return unpack_control(self.packed_control(), n_train)

    def packed_control(self) -> bytes | None:
        """c_i as it is stored; None for a newcomer's zeros."""
        row = self._db.one(f"select c_i from controls where id = ({_CURRENT})")
        return None if row is None else bytes(row[0])

    def stored_control(self, n_train: int) -> StoredControl:
        """c_i to be read in parts; zeros for a newcomer. ``StorageError`` as for ``control``."""
        row = self._db.one(f"select length(c_i) from controls where id = ({_CURRENT})")
        _check_length(None if row is None else row[0], n_train)
        return StoredControl(self, n_train)

    def read_control(self, start: int, stop: int) -> I64:
        """Some elements of c_i, which has as many."""
        (control,) = self._row("control")
        if control is None:
            return np.zeros(stop - start, np.int64)
        with self._db.blob("controls", "c_i", control) as blob:
            blob.seek(8 * start)
            return np.frombuffer(blob.read(8 * (stop - start)), "<i8")

    @property
    def newcomer(self) -> bool:
        """Whether no update of this device has given it a control in this epoch."""
        return self._row("control")[0] is None

    def audit(self) -> int | None:
        """sum r_j c_ij mod 2^64 with the epoch's factors; None before the first epoch."""
        epoch = self.epoch
        if epoch is None:
            return None
        row = self._db.one(f"select length(c_i) from controls where id = ({_CURRENT})")
        if row is None:
            return 0
        return (
            sum(
                kernels.linear_digest(
                    self.read_control(part.start, part.stop), epoch, first=part.start
                )
                for part in parts(row[0] // 8)
            )
            % 2**64
        )

    def unsent(self) -> Pending | None:
        """The unsettled update, if there is one, to be sent: its control is not looked at."""
        row = self._db.one("select uid, seq, round, epoch, base, sha256, length(body) from outbox")
        if row is None:
            return None
        uid, seq, round_, epoch, base, sha256, size = row
        return Pending(uid, seq, round_, epoch, base, sha256, StoredBody(self, size), None)

    def read_body(self, start: int, stop: int) -> bytes:
        """Some bytes of the pending update's body, which has as many."""
        with self._db.blob("outbox", "body", 1) as blob:
            blob.seek(start)
            return blob.read(stop - start)

    def pending(self) -> Pending | None:
        """The unsettled update, if there is one, read whole."""
        row = self._db.one(
            "select uid, seq, round, epoch, base, sha256, body, c_i"
            " from outbox left join controls on controls.id = control_next"
        )
        if row is None:
            return None
        uid, seq, round_, epoch, base, sha256, body, blob = row
        c_i_next = None if blob is None else np.frombuffer(blob, "<i8")
        return Pending(uid, seq, round_, epoch, base, sha256, body, c_i_next)

    def pending_uid(self) -> bytes | None:
        """The name of the unsettled update."""
        row = self._db.one("select uid from outbox")
        return None if row is None else bytes(row[0])

    def adopt(self, epoch: int, c_i: I64) -> None:
        """Begin with a control that the ledger has already (a warm start, a test's state)."""
        with self._db.transaction():
            self._db.run("update device set epoch = ?, control = null", epoch)
            self._drop_controls()
            self._db.run("update device set control = ?", self._write_control(c_i))

    def kept(self, plan: bytes) -> bytes | None:
        """What this device keeps of the plan to itself, float32; None before the first round."""
        kept_plan, kept = self._row("kept_plan, kept")
        return kept if kept_plan == plan else None

    def residual(self, plan: bytes) -> bytes | None:
        """What lossy updates of the plan left out so far, float32; None for nothing."""
        row = self._db.one("select left_out from residual where plan = ?", plan)
        return None if row is None else bytes(row[0])

    def memory(self, plan: bytes, algorithm: str) -> bytes | None:
        """What this algorithm keeps on this device, float32; None for nothing."""
        row = self._db.one(
            "select vector from memory where plan = ? and algorithm = ?", plan, algorithm
        )
        return None if row is None else bytes(row[0])

    def save_pending(
        self,
        pending: Pending,
        *,
        plan: bytes | None = None,
        kept: bytes | None = None,
        residual: Buffer | None = None,
        memory: Memory | None = None,
    ) -> None:
        """The transaction after training.

        ``kept``: what stays on the device, whatever the receipt will say. ``residual``: what
        error feedback will have left out, float32, if the update is counted. ``memory``: the
        algorithm's, by its own rule.
        """
        c_i_next = pending.c_i_next
        with self._db.transaction():
            slot, value = room(pending.body)
            self._db.run(
                f"insert into outbox values (1, ?, ?, ?, ?, ?, ?, ?, {slot})",
                pending.uid,
                pending.seq,
                pending.round,
                pending.epoch,
                pending.base,
                pending.sha256,
                None if c_i_next is None else self._write_control(c_i_next),
                value,
            )
            self._db.fill("outbox", "body", 1, pending.body)
            if kept is not None:
                self._db.run("update device set kept_plan = ?, kept = ?", plan, kept)
            if residual is not None:
                self._db.run("insert into residual_next values (1, ?, ?)", plan, residual)
            if memory is not None:
                table = "memory_next" if memory.rule == "receipt" else "memory"
                self._db.run(
                    f"insert or replace into {table} values (1, ?, ?, ?, ?)",
                    plan,
                    memory.algorithm,
                    memory.rule,
                    memory.vector,
                )

    def settle(self, uid: bytes, *, counted: bool, reason: str) -> bool:
        """The transaction on the receipt; False (and nothing done) for another update's."""
        with self._db.transaction():
            row = self._db.one("select seq, round from outbox where uid = ?", uid)
            if row is None:
                return False
            if counted:
                self._db.run(
                    "update device set control ="
                    " coalesce((select control_next from outbox), control)"
                )
                self._db.run("insert or replace into residual select * from residual_next")
                self._db.run("insert or replace into memory select * from memory_next")
            self._db.run("delete from residual_next")
            self._db.run("delete from memory_next")
            self._db.run(
                "update device set seq = (select seq from outbox),"
                " last_base = (select base from outbox)"
            )
            self._db.run("delete from outbox")
            self._drop_controls()
            self._db.run(
                "insert into receipts values (?, ?, ?, ?, ?)",
                row[0],
                uid,
                row[1],
                counted,
                reason,
            )
        return True

    def new_epoch(self, epoch: int) -> None:
        """c_i = 0 in a control epoch seen for the first time; an unsettled update is void.

        The residual, too: the aggregator's history may have been rewritten under it.
        """
        with self._db.transaction():
            self._db.run(
                "update device set epoch = ?, control = null,"
                " seq = coalesce((select seq from outbox), seq)",
                epoch,
            )
            self._forget_work()

    def enrol_anew(self) -> None:
        """Become a newcomer: a new nonce, no control, no residual, nothing pending."""
        with self._db.transaction():
            self._db.run(
                "update device set nonce = ?, seq = 0, epoch = null, control = null,"
                " last_base = null",
                os.urandom(16),
            )
            self._forget_work()

    def _forget_work(self) -> None:
        for table in ("outbox", "residual", "residual_next", "memory_next"):
            self._db.run(f"delete from {table}")
        self._db.run("delete from memory where rule = 'receipt'")
        self._drop_controls()

    def _write_control(self, c_i: Parts[np.int64]) -> int:
        """Put a control beside the others, in parts; its number."""
        data = VectorBytes(c_i, "<i8")
        slot, value = room(data)
        self._db.run(f"insert into controls (c_i) values ({slot})", value)
        row = self._db.one("select last_insert_rowid()")
        assert row is not None
        control: int = row[0]
        self._db.fill("controls", "c_i", control, data)
        return control

    def _drop_controls(self) -> None:
        """Let go of all controls but c_i; nothing is in the outbox."""
        self._db.run(f"delete from controls where id is not ({_CURRENT})")

    def receipts(self) -> list[tuple[int, int, bool, str]]:
        """(sequence, round, counted, reason) of all settled updates, oldest first."""
        rows = self._db.all("select seq, round, counted, reason from receipts order by rowid")
        return [(seq, round_, bool(counted), reason) for seq, round_, counted, reason in rows]

    def close(self) -> None:
        self._db.close()


def unpack_control(blob: bytes | None, n_train: int) -> I64:
    """A stored control as int64 [n_train]; ``StorageError`` where it is another plan's."""
    if blob is None:
        return kernels.aligned(n_train, np.int64)
    _check_length(len(blob), n_train)
    out = kernels.aligned(n_train, np.int64)
    out[:] = np.frombuffer(blob, "<i8")
    return out


def _check_length(size: int | None, n_train: int) -> None:
    if size is not None and size != 8 * n_train:
        raise StorageError(
            f"the stored control variate has {size // 8} entries, the plan {n_train}",
            why="it belongs to another plan",
            repair="start a new control epoch at the aggregator when the plan changes",
        )
