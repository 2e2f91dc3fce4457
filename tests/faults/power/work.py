"""Rounds over the product's own store and ledger: train, count, send the receipt, settle, close."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random

import numpy as np
from faults.power.history import History, recorded
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.store import Pending, Store
from kellet.server.ledger import Ledger, Member, UpdateRow

__all__ = ["EPOCH", "N", "work"]

N = 4000  # parameters: 40 rounds fill a write-ahead log, which is then copied into the database
EPOCH = 1
DISKS = ("server", "a", "b")
I64 = NDArray[np.int64]


class _Device:
    """A device's store, and what the ledger must have of it."""

    def __init__(self, name: str, root: Path, luck: Random) -> None:
        self.name = name
        self._path = root / name / "device.db"
        self._nonce = luck.randbytes(16)
        self._counted = 0
        self._control: I64 = np.zeros(N, np.int64)
        self.store = self._open()
        self.store.new_epoch(EPOCH)

    def _open(self) -> Store:
        return Store(self.name, self._path, nonce=self._nonce)

    def restart(self) -> None:
        self.store.close()
        self.store = self._open()

    def train(self, uid: bytes, round_: int, delta: I64, luck: Random) -> None:
        """Put an update into the outbox."""
        body, base = luck.randbytes(4 * N), luck.randbytes(32)
        sha256 = hashlib.sha256(body).digest()
        after = self._control + delta
        seq = self.store.seq + 1
        self.store.save_pending(Pending(uid, seq, round_, EPOCH, base, sha256, body, after))

    def upload(self, ledger: Ledger, *, counted: bool, reason: str) -> None:
        """Have the ledger count what is in the outbox, or refuse it."""
        pending = self.store.pending()
        assert pending is not None
        assert pending.c_i_next is not None
        if counted:
            self._control, self._counted = pending.c_i_next[:], self._counted + 1
        member = self.member(pending.seq, pending.uid)
        ledger.write_update(
            UpdateRow(
                uid=pending.uid,
                device=self.name,
                nonce=self._nonce,
                kind="update",
                seq=pending.seq,
                round=pending.round,
                counted=counted,
                reason=reason,
                weight=1,
                audit=member.audit,
                header={},
            ),
            member,
        )

    def member(self, seq: int = 0, uid: bytes = b"") -> Member:
        """As the ledger has it."""
        return Member(
            device=self.name,
            nonce=self._nonce,
            state="active",
            incarnation=1,
            boot=bytes(8),
            counted=self._counted,
            last_seq=seq,
            last_uid=uid,
            audit=kernels.linear_digest(self._control, EPOCH),
            seen=0.0,
        )


def work(root: Path, *, seed: int, rounds: int) -> History:
    """Run rounds and return what they did to the disks.

    Some updates are refused; devices and server start anew now and then.
    """
    with recorded(root, DISKS) as history:
        _rounds(history, Random(seed), rounds)
    return history


def _rounds(history: History, luck: Random, rounds: int) -> None:
    numbers = np.random.default_rng(luck.getrandbits(32))
    path = history.root / "server" / "ledger.db"
    ledger = Ledger(path)
    fleet = [_Device(name, history.root, luck) for name in history.disks[1:]]
    total: I64 = np.zeros(N, np.int64)
    ledger.found(bytes(32), bytes(32), total.tobytes(), EPOCH)
    for device in fleet:
        ledger.write_member(device.member())
    for round_ in range(1, rounds + 1):
        ledger.open_round(round_, luck.randbytes(200))
        for device in luck.sample(fleet, len(fleet)):
            uid, delta = luck.randbytes(16), numbers.integers(-(2**40), 2**40, N)
            history.deltas[uid] = delta
            device.train(uid, round_, delta, luck)
            counted = luck.random() < 0.85
            reason = "counted" if counted else "norm"
            device.upload(ledger, counted=counted, reason=reason)
            history.receipts.append((len(history.events), uid, counted))
            device.store.settle(uid, counted=counted, reason=reason)
            total += delta * counted
        model = luck.randbytes(32)
        ledger.close_round(round_, closed=True, model=model, control=total.tobytes(), summary={})
        for device in fleet:
            if luck.random() < 0.05:
                device.restart()
        if luck.random() < 0.05:
            ledger.close()
            ledger = Ledger(path)
    for device in fleet:
        device.store.close()
    ledger.close()
