"""The books of a fleet, kept apart from the product: what was made, counted, and must come out.

Everything is computed anew in Python's integers, which do not overflow and do not round.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from machines.optimised import Moments, optimised
from numpy.typing import NDArray

from kellet.sdk.plan import Plan
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.body import Body, decode_body
from kellet.sdk.protocol.messages import Round
from kellet.sdk.protocol.vectors import Shapes
from kellet.sdk.store import Pending, Store
from kellet.server.aggregator import AggregatorMachine
from kellet.server.ledger import Ledger, UpdateRow

__all__ = ["Books"]

GRID = 2**48
# 1024 / sqrt(1 + s), rounded: what delta_y weighs s rounds late.
LATE = (1024, 724, 591, 512, 458)


@dataclass
class _Entry:
    """A membership as its device's store last had it."""

    epoch: int | None
    c_i: list[int]
    pending: Pending | None


class Books:
    """``write`` after everything a device did; ``gap`` and ``check`` whenever it matters."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._entries: dict[tuple[str, bytes], _Entry] = {}
        self._frozen: set[tuple[str, bytes]] = set()
        self.made: dict[bytes, bytes] = {}

    def write(self, store: Store) -> None:
        identity = store.identity
        pending = store.pending()
        if (identity.device, identity.nonce) not in self._frozen:
            self._entries[identity.device, identity.nonce] = _Entry(
                store.epoch, store.control(self._plan.n_train).tolist(), pending
            )
        if pending is not None:
            # A name stands for one piece of work, through all restarts.
            assert self.made.setdefault(pending.uid, pending.body) == pending.body

    def copy(self) -> dict[tuple[str, bytes], _Entry]:
        """The memberships as they are now, for ``rewind``."""
        return dict(self._entries)

    def rewind(self, entries: dict[tuple[str, bytes], _Entry]) -> None:
        """A disk goes back in time: these memberships stay as they were, as ghosts."""
        self._entries = dict(entries)
        self._frozen |= entries.keys()

    def freeze(self, device: str) -> None:
        """A device's disk goes back in time: what it was until now stays, as a ghost."""
        self._frozen |= {key for key in self._entries if key[0] == device}

    def gap(self, server: AggregatorMachine) -> int:
        """max |C - sum of the committed c_i| over all members and ghosts, in grid steps."""
        ledger = server._ledger
        total = [0] * self._plan.n_train
        for member in ledger.members():
            entry = self._entries.get((member.device, member.nonce))
            if member.state not in ("active", "ghost") or entry is None:
                continue
            if entry.epoch != server.epoch:
                continue  # the device sets c_i = 0 when it first sees the new epoch
            c_i, pending = entry.c_i, entry.pending
            if pending is not None and pending.c_i_next is not None:
                receipt = ledger.receipt(pending.uid)
                if receipt is not None and receipt.counted:
                    c_i = pending.c_i_next[:].tolist()
            total = [a + b for a, b in zip(total, c_i, strict=True)]
        return max(abs(a - b) for a, b in zip(server.control.integers(), total, strict=True))

    def check(self, server: AggregatorMachine, ledger: Ledger) -> None:
        """Model and C of every round, from the bodies that the devices made."""
        shapes = Shapes.of(self._plan.manifest.tensors)
        x: NDArray[Any] = self._plan.initial()[: shapes.n_update]
        left_out = np.zeros_like(x)
        total, epoch = [0] * self._plan.n_train, 1
        kept: Moments | None = None
        told: dict[int, tuple[Round, Any]] = {}  # each announcement, and its control
        came = self._came(ledger)
        for row in ledger.rounds():
            message: Round = wire.unpack(row.announcement, Round)
            if message.epoch != epoch:
                total, epoch = [0] * self._plan.n_train, message.epoch
            announced = x.tobytes()
            if message.model.codec == "q8":
                wanted = x + left_out
                announced, decoded = int8_rows(wanted, shapes.update)
                left_out = wanted - decoded
            else:
                left_out = np.zeros_like(x)
            assert message.model.sha256 == hashlib.sha256(announced).digest()
            c_a = None
            if message.control is not None:
                c_a = np.array([float(t) / (message.members * GRID) for t in total], np.float64)
                c_a = c_a.astype(np.float32)
                raw = c_a.tobytes()
                if message.control.codec == "q8":
                    raw, c_a = int8_rows(c_a, shapes.train)
                assert message.control.sha256 == hashlib.sha256(raw).digest()
            told[row.round] = message, c_a
            moved, weight = [0] * self._plan.n_update, 0
            for update in came.get(row.round, []):
                named, of_named = told[update.round]
                body = decode_body(self.made[update.uid], shapes, named.codecs.share)
                assert body.header.scheme in named.schemes
                assert body.header.delta_y in named.codecs.delta_y
                share = body.header.samples if message.weighting == "samples" else 1
                assert body.delta_y is not None
                step = grid(body.delta_y.astype(np.float64))
                part = share * (LATE[row.round - update.round] if message.buffering else 1)
                moved = [m + part * s for m, s in zip(moved, step, strict=True)]
                weight += share * (LATE[0] if message.buffering else 1)
                if of_named is not None:
                    change = delta_c(body, of_named, named)
                    total = [t + d for t, d in zip(total, change, strict=True)]
            if row.state == "closed":
                mean = np.array([float(m) / (weight * GRID) for m in moved])
                n = self._plan.n_train
                mean[:n], kept = optimised(message.optimizing, mean[:n].tolist(), kept)
                x = x.copy()
                x[: len(mean)] = (x[: len(mean)].astype(np.float64) + mean).astype(np.float32)
                assert row.summary["model"] == hashlib.sha256(x.tobytes()).hexdigest()
        assert server.digest == hashlib.sha256(x.tobytes()).digest()
        if epoch == server.epoch:
            assert server.control.integers() == total
        assert self.gap(server) == 0

    @staticmethod
    def _came(ledger: Ledger) -> dict[int, list[UpdateRow]]:
        """What was counted in each round, whichever round it names: once a device and name."""
        came: dict[int, list[UpdateRow]] = {}
        rounds = {row.round: wire.unpack(row.announcement, Round) for row in ledger.rounds()}
        for number, message in rounds.items():
            named = ledger.counted(number)
            assert len({update.device for update in named}) == len(named)
            for update in named:
                stale = update.header.get("stale", 0)
                counting = rounds[number + stale]
                assert stale <= (counting.buffering.max_stale if counting.buffering else 0)
                assert counting.epoch == message.epoch
                came.setdefault(number + stale, []).append(update)
        return came

    def check_device(self, store: Store, ledger: Ledger) -> None:
        """A device's receipts are the ledger's, each once; its audit is, too."""
        identity = store.identity
        receipts = store.receipts()
        assert len({seq for seq, *_ in receipts}) == len(receipts)
        settled = {(seq, round_) for seq, round_, counted, _ in receipts if counted}
        rows = [
            update
            for row in ledger.rounds()
            for update in ledger.counted(row.round)
            if (update.device, update.nonce) == (identity.device, identity.nonce)
        ]
        assert len(rows) == len(settled)
        assert {(update.seq, update.round) for update in rows} == settled
        for member in ledger.members():
            if (member.device, member.nonce) == (identity.device, identity.nonce):
                assert member.audit == store.audit()


def grid(values: NDArray[np.float64]) -> list[int]:
    """rint(v * 2^48): the product is exact in float64, and Python rounds ties to even."""
    return [round(float(v) * GRID) for v in values]


def int8_rows(v: NDArray[np.float32], layout: NDArray[np.int64]) -> tuple[bytes, Any]:
    """Rounded to the nearest: the bytes, and what they decode to."""
    scales, values, decoded = [], [], []
    start = 0
    for rows, length in layout.reshape(-1, 2).tolist():
        for _ in range(rows):
            row = v[start : start + length]
            scale = max(np.abs(row).max() / np.float32(127), np.float32(2.0**-40))
            q = np.rint(np.clip(row * (np.float32(1) / scale), -127, 127))
            scales.append(scale)
            values.append(q.astype(np.int8))
            decoded.append(q.astype(np.float32) * scale)
            start += length
    raw = np.array(scales, "<f4").tobytes() + np.concatenate(values).tobytes()
    return raw, np.concatenate(decoded)


def delta_c(body: Body, c_a: NDArray[np.float32], message: Round) -> list[int]:
    """What an update adds to C: as it came, or from c_a and delta_y alone."""
    if body.delta_c is not None:
        return grid(body.delta_c.astype(np.float64))
    assert body.header.delta_c == "derived"
    assert body.delta_y is not None
    trained = body.delta_y[: len(c_a)].astype(np.float64)
    damping = message.algorithm["control_damping"]
    return grid(-damping * (c_a.astype(np.float64) + trained / body.header.rate_sum))
