"""What devices and an aggregator have on their disks, read without going through them."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk import Plan
from kellet.server import FleetConfig
from kellet.server.aggregator import AggregatorMachine
from kellet.server.blobs import Blobs
from kellet.server.ledger import Ledger
from kellet.server.sums import ExactSum, control_gap
from kellet.server.uploads import Spool

__all__ = ["DeviceDisk", "LedgerDisk", "audit", "gap"]


class Settled(NamedTuple):
    """A receipt that a device has written down."""

    seq: int
    round: int
    counted: bool
    reason: str


class DeviceDisk:
    """A device's state directory."""

    def __init__(self, folder: Path, n_train: int) -> None:
        self._path = folder / "device.db"
        self._n_train = n_train

    def receipts(self) -> list[Settled]:
        """Oldest first."""
        with _reading(self._path) as db:
            rows = db.execute("select seq, round, counted, reason from receipts order by rowid")
            return [Settled(seq, round_, bool(counted), why) for seq, round_, counted, why in rows]

    def pending(self) -> bytes | None:
        """The name of the update that waits in the outbox."""
        with _reading(self._path) as db:
            row = db.execute("select uid from outbox").fetchone()
            return row[0] if row else None

    def control(self, counted: set[bytes] | None = None) -> NDArray[np.int64]:
        """c_i on the grid; the pending one if its update is among the ``counted``."""
        with _reading(self._path) as db:
            (stored,) = db.execute(
                "select (select c_i from controls where id = control) from device"
            ).fetchone()
            for uid, pending in db.execute(
                "select uid, (select c_i from controls where id = control_next) from outbox"
            ):
                if counted is not None and uid in counted:
                    stored = pending
        if stored is None:
            return np.zeros(self._n_train, np.int64)
        return np.frombuffer(stored, "<i8").astype(np.int64)

    def personal(self) -> NDArray[np.float32] | None:
        """Its own model of the plan that it trained last; None where it has none."""
        with _reading(self._path) as db:
            row = db.execute("select v from personal order by id desc").fetchone()
            return np.frombuffer(row[0], "<f4") if row else None


class LedgerDisk:
    """An aggregator's state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "ledger.db"

    def rounds(self) -> list[tuple[int, str]]:
        """(round, state) of all rounds, oldest first."""
        return self._all("select round, state from rounds order by round")

    def open_and_counted(self) -> tuple[int, list[str]]:
        """The open round (0: none) and who is counted in it, sorted."""
        with _reading(self._path) as db:
            db.execute("begin")
            row = db.execute("select round from rounds where state = 'open'").fetchone()
            if row is None:
                return 0, []
            devices = db.execute(
                "select device from updates where round = ? and counted = 1 order by device", row
            )
            return row[0], [device for (device,) in devices]

    def models(self) -> list[str]:
        """Each closed round's model digest."""
        query = "select json_extract(summary, '$.model') from rounds where state = 'closed'"
        return [model for (model,) in self._all(query + " order by round")]

    def counted(self) -> list[tuple[int, str]]:
        """(round, device) of each update that was counted, sorted."""
        return self._all(
            "select round, device from updates where counted = 1 and kind = 'update'"
            " order by round, device"
        )

    def counted_in(self, round_: int) -> list[str]:
        """The devices counted in a round, sorted."""
        return [device for number, device in self.counted() if number == round_]

    def refused(self) -> list[tuple[int, str, str]]:
        """(round, device, reason) of each update that was not counted though its bytes came."""
        return self._all("select round, device, reason from updates where counted = 0")

    def headers(self, round_: int) -> dict[str, dict[str, Any]]:
        """By device, what the counted updates of a round say of themselves."""
        query = f"select device, header from updates where counted = 1 and round = {round_}"
        return {device: json.loads(header) for device, header in self._all(query)}

    def summary(self, round_: int) -> dict[str, Any]:
        """What there is to tell about a round."""
        query = f"select summary from rounds where round = {round_}"
        found: dict[str, Any] = json.loads(self._all(query)[0][0])
        return found

    def uids(self) -> set[bytes]:
        """The counted updates' names."""
        return {uid for (uid,) in self._all("select uid from updates where counted = 1")}

    def membership(self, device: str) -> tuple[int, set[bytes]]:
        """The device's audit (its c_i as the ledger has it) and its counted updates, at once."""
        with _reading(self._path) as db:
            db.execute("begin")
            (audit,) = db.execute(
                "select audit from members where device = ? and state = 'active'", (device,)
            ).fetchone()
            rows = db.execute("select uid from updates where counted = 1 and device = ?", (device,))
            return int(audit), {uid for (uid,) in rows}

    def arrived(self, uid: bytes, part_size: int) -> tuple[int, int]:
        """(parts that are here, parts) of an update; (0, 0) before its grant."""
        path = self.folder / "spool" / f"{uid.hex()}.up"
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return 0, 0
        # Behind the data are 4 bytes, and for each part one that says so.
        parts = -(-(len(raw) - 4) // (part_size + 1))
        return sum(raw[len(raw) - parts :]), parts

    def control(self, plan: Plan, config: FleetConfig) -> ExactSum:
        """C. Where updates were counted since the last checkpoint, replayed on a copy."""
        (spooled,) = self._all("select count(*) from updates where spooled = 1")[0]
        if not spooled:
            return ExactSum.load(self._all("select control from fleet")[0][0])
        with tempfile.TemporaryDirectory() as copy:
            folder = Path(copy) / "state"
            shutil.copytree(self.folder, folder)
            ledger = Ledger(folder / "ledger.db")
            machine = AggregatorMachine(
                config,
                plan,
                ledger=ledger,
                blobs=Blobs(folder / "blobs"),
                spool=Spool(folder / "spool"),
                clock=lambda: 0.0,
            )
            ledger.close()
            return machine.control

    def _all(self, query: str) -> list[Any]:
        with _reading(self._path) as db:
            return db.execute(query).fetchall()


def gap(ledger: LedgerDisk, devices: Iterable[DeviceDisk], plan: Plan, config: FleetConfig) -> int:
    """max |C - sum(c_i)| over the committed controls, in grid steps; nobody may be running."""
    counted = ledger.uids()
    return control_gap(
        ledger.control(plan, config), [device.control(counted) for device in devices]
    )


def audit(control: NDArray[np.int64], epoch: int = 1) -> int:
    """A control's digest under the epoch's signs, as the ledger keeps it."""
    return kernels.linear_digest(control, epoch)


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that leaves the files of a killed process as they are, for it to recover."""
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, timeout=20.0)
    try:
        yield db
    finally:
        db.close()
