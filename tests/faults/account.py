"""A fleet's account, kept apart from the product: what was counted, and what must come of it.

Everything is computed anew from the ledger's rows and the bodies that were stored, in Python's
integers, which do not overflow and do not round. ``check`` is called after every event.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from machines.invariant import GRID, LATE, delta_c, grid, int8_rows
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.plan import Plan
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.body import Body, decode_body
from kellet.sdk.protocol.messages import Round
from kellet.sdk.protocol.vectors import Shapes, decode_vector
from kellet.sdk.store import Store
from kellet.server.ledger import RoundRow, UpdateRow

if TYPE_CHECKING:
    from faults.actors import FaultyDevice, FaultyServer

__all__ = ["Account", "Broken", "counted_in"]

Key = tuple[str, bytes]  # a membership: device and nonce


class Broken(AssertionError):
    """A promise that does not hold. ``check`` names it."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


@dataclass
class Memory:
    """What a device's store says, as of its last write."""

    key: Key
    epoch: int | None
    c_i: list[int]
    pending: bytes | None
    c_i_next: list[int] | None
    receipts: list[tuple[bytes, int]]


@dataclass(frozen=True)
class _Moved:
    """What a counted update adds: to its round's sum, and to C."""

    body: Body
    delta_y: list[int]
    delta_c: list[int]


@dataclass(frozen=True)
class _Told:
    """An announcement, and c_a as it decodes (float32 [n_train], or None)."""

    message: Round
    control: NDArray[np.float32] | None


@dataclass
class Account:
    """``made``, ``stored``, ``blobs``: told by the processes as they write. ``plan``: the fleet's.

    ``forgotten``: updates that a restored ledger does not know any more.
    """

    plan: Plan
    made: dict[bytes, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    stored: dict[bytes, bytes] = field(default_factory=dict)
    blobs: dict[bytes, bytes] = field(default_factory=dict)
    forgotten: set[bytes] = field(default_factory=set)
    checked: int = 0
    _moved: dict[tuple[bytes, bytes], _Moved] = field(default_factory=dict)
    _models: dict[bytes, NDArray[np.float32]] = field(default_factory=dict)
    _told: dict[bytes, _Told] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shapes = Shapes.of(self.plan.manifest.tensors)

    # -- what is on the disks -----------------------------------------------------------

    def remember(self, store: Store) -> Memory:
        """Read a device's store."""
        identity, pending = store.identity, store.pending()
        if pending is not None:
            self.made[pending.uid].add(bytes(pending.body))
        return Memory(
            key=(identity.device, identity.nonce),
            epoch=store.epoch,
            c_i=store.control(self.plan.n_train).tolist(),
            pending=pending.uid if pending else None,
            c_i_next=None
            if pending is None or pending.c_i_next is None
            else pending.c_i_next.tolist(),
            receipts=store._db.all("select uid, counted from receipts"),
        )

    # -- the checks ------------------------------------------------------------------------

    def check(self, server: FaultyServer, devices: Iterable[FaultyDevice]) -> None:
        """Hold the ledger against itself, against the aggregator's memory and the devices'."""
        self.checked += 1
        rows = server.counted
        self._once(rows)
        rounds = server.rounds
        told = self._announcements(server, rounds)
        moved = {row.uid: self._move(row, told.get(row.round)) for row in rows}
        members = {(m.device, m.nonce): m for m in server.members}
        by_member = self._controls(rows, moved, server.machine.epoch)
        self._gap(server, devices, members, by_member)
        for key, member in members.items():
            audit = kernels.linear_digest(np.array(by_member[key], np.int64), server.machine.epoch)
            if member.audit != audit:
                raise Broken("audit", f"{member.device}'s in the ledger is not its control's")
        self._model(server, rounds, rows, moved)
        uids = {row.uid for row in rows}
        for device in devices:
            self._receipts(device, uids)

    def _once(self, rows: list[UpdateRow]) -> None:
        """Each update once; a device once in a round; a membership's sequence once."""
        for what, keys in (
            ("update", [row.uid for row in rows]),
            ("device in a round", [(r.round, r.device) for r in rows if r.kind == "update"]),
            ("sequence", [(row.device, row.nonce, row.seq) for row in rows]),
        ):
            twice = [key for key, count in Counter(keys).items() if count > 1]
            if twice:
                raise Broken("counted twice", f"{what} {twice}")

    def _announcements(self, server: FaultyServer, rounds: list[RoundRow]) -> dict[int, _Told]:
        """What each round announced; the control of a new one is C / N as it is now."""
        told: dict[int, _Told] = {}
        for row in rounds:
            known = self._told.get(row.announcement)
            if known is None:
                known = self._told[row.announcement] = self._tell(row)
                if known.control is not None:
                    self._check_control(server, known)
            told[row.round] = known
        return told

    def _tell(self, row: RoundRow) -> _Told:
        message: Round = wire.unpack(row.announcement, Round)
        if message.control is None:
            return _Told(message, None)
        raw, shapes = self.blobs[message.control.sha256], self.shapes
        codec = message.control.codec
        return _Told(message, decode_vector(codec, raw, shapes.train, shapes.n_train))

    def _check_control(self, server: FaultyServer, told: _Told) -> None:
        enrolled = sum(m.state in ("active", "ghost") for m in server.members)
        if told.message.members != enrolled:
            raise Broken("announced", f"N = {told.message.members}, and {enrolled} are enrolled")
        total = server.machine.control.integers()
        c = np.array([float(t) / (enrolled * GRID) for t in total]).astype(np.float32)
        assert told.message.control is not None
        if told.message.control.codec == "q8":
            c = int8_rows(c, self.shapes.train)[1]
        if told.control is None or told.control.tolist() != c.tolist():
            raise Broken("announced", f"c = {told.control}, not C / N = {c}")

    def _move(self, row: UpdateRow, told: _Told | None) -> _Moved:
        raw = self.stored.get(row.uid)
        if raw is None:
            raise Broken("stored", f"{row.device}'s update was counted before it was stored")
        known = self._moved.get((row.uid, raw))
        if known is None:
            if raw not in self.made[row.uid]:
                raise Broken("stored", f"no device made what was counted as {row.device}'s")
            known = self._moved[row.uid, raw] = self._read(raw, told)
        return known

    def _read(self, raw: bytes, told: _Told | None) -> _Moved:
        body = decode_body(raw, self.shapes, told.message.codecs.share if told else 0.0)
        zero = [0] * self.plan.n_train
        if body.header.kind == "leave":
            c_i = zero if body.c_i is None else body.c_i.tolist()
            return _Moved(body, [], [-q for q in c_i])
        assert body.delta_y is not None
        assert told is not None
        delta_y = grid(body.delta_y.astype(np.float64))
        if body.header.delta_c == "none":
            return _Moved(body, delta_y, zero)
        assert told.control is not None
        return _Moved(body, delta_y, delta_c(body, told.control, told.message))

    def _controls(
        self, rows: list[UpdateRow], moved: dict[bytes, _Moved], epoch: int
    ) -> dict[Key, list[int]]:
        """Each membership's c_i, as the ledger's rows make it."""
        controls: dict[Key, list[int]] = defaultdict(lambda: [0] * self.plan.n_train)
        for row in rows:
            change = moved[row.uid]
            if change.body.header.epoch == epoch:
                key = (row.device, row.nonce)
                controls[key] = add(controls[key], change.delta_c)
        return controls

    def _gap(
        self,
        server: FaultyServer,
        devices: Iterable[FaultyDevice],
        members: dict[Key, Any],
        by_member: dict[Key, list[int]],
    ) -> None:
        """C is the sum of the committed c_i: the device's where it speaks for its membership."""
        epoch = server.machine.epoch
        committed = {
            key: by_member[key] for key, m in members.items() if m.state in ("active", "ghost")
        }
        off = []
        counted = {row.uid for row in server.counted}
        for device in devices:
            memory = device.memory
            member = members.get(memory.key)
            if member is None or not device.is_trusted(server, member):
                continue
            c_i = self._committed(memory, epoch, counted)
            if memory.key in committed:
                committed[memory.key] = c_i
            if c_i != by_member[memory.key]:
                off.append(device.name)
        total = [0] * self.plan.n_train
        for c_i in committed.values():
            total = add(total, c_i)
        gap = max(abs(a - b) for a, b in zip(server.machine.control.integers(), total, strict=True))
        if gap:
            raise Broken("gap", f"C and the sum of c_i are {gap} grid steps apart; off: {off}")
        if off:
            raise Broken("control", f"c_i and the ledger differ: {off}")

    def _committed(self, memory: Memory, epoch: int, counted: set[bytes]) -> list[int]:
        """The stored c_i, plus the pending change if the ledger counted it."""
        if memory.epoch != epoch:
            return [0] * self.plan.n_train  # set when it first sees the epoch
        if memory.pending in counted and memory.c_i_next is not None:
            return memory.c_i_next
        return memory.c_i

    def _model(
        self,
        server: FaultyServer,
        rounds: list[RoundRow],
        rows: list[UpdateRow],
        moved: dict[bytes, _Moved],
    ) -> None:
        """The model is the plain replay of the ledger; the open round's sums are its rows'."""
        x: NDArray[np.float32] = self.plan.initial()[: self.shapes.n_update]
        left_out = np.zeros_like(x)
        for row in rounds:
            message = self._told[row.announcement].message
            announced = x.tobytes()
            if message.model.codec == "q8":
                announced, decoded = int8_rows(x + left_out, self.shapes.update)
                left_out = x + left_out - decoded
            else:
                left_out = np.zeros_like(x)
            if message.model.sha256 != hashlib.sha256(announced).digest():
                raise Broken("model", f"round {row.round} announces another than the replay's")
            counted = [u for u in rows if u.kind == "update" and counted_in(u) == row.round]
            if row.state == "open":
                self._sums(server, row, counted, message, moved)
            if row.state != "closed":
                continue
            key = hashlib.sha256(x.tobytes() + b"".join(sorted(u.uid for u in counted))).digest()
            if key not in self._models:
                changes = [(moved[u.uid], row.round - u.round) for u in counted]
                self._models[key] = _apply(x, message, changes)
            x = self._models[key]
            if row.summary["model"] != hashlib.sha256(x.tobytes()).hexdigest():
                raise Broken("model", f"round {row.round} closed with another than the replay's")
        if server.machine.digest != hashlib.sha256(x.tobytes()).digest():
            raise Broken("model", "the aggregator's is not the replay's")

    def _sums(
        self,
        server: FaultyServer,
        row: RoundRow,
        counted: list[UpdateRow],
        message: Round,
        moved: dict[bytes, _Moved],
    ) -> None:
        opened = server.machine._round
        if opened is None or opened.number != row.round:
            raise Broken("sums", f"round {row.round} is open in the ledger alone")
        total = [0] * self.plan.n_update
        for update in counted:
            change = moved[update.uid]
            share = _share(message, change.body, row.round - update.round)
            total = [t + share * q for t, q in zip(total, change.delta_y, strict=True)]
        if opened.total.integers() != total:
            raise Broken("sums", f"round {row.round} has not added what is in its rows")

    def _receipts(self, device: FaultyDevice, counted: set[bytes]) -> None:
        """A receipt is the ledger's, each once."""
        seen = Counter(uid for uid, _ in device.memory.receipts)
        twice = [uid.hex() for uid, count in seen.items() if count > 1]
        if twice:
            raise Broken("receipted twice", f"{device.name}: {twice}")
        for uid, said in device.memory.receipts:
            if uid not in self.forgotten and bool(said) != (uid in counted):
                raise Broken("receipt", f"{device.name} was told {said} of {uid.hex()}")

    def check_settled(self, server: FaultyServer, device: FaultyDevice) -> None:
        """In the end: all that was counted of a device has been receipted.

        But for what was not settled when a control epoch ended: that is void.
        """
        receipted = {uid for uid, said in device.memory.receipts if said}
        key = device.memory.key
        missing = [
            row.seq
            for row in server.counted
            if (row.device, row.nonce) == key
            and row.uid not in receipted
            and row.header["epoch"] == server.machine.epoch
        ]
        if missing:
            raise Broken("receipt", f"{device.name} has none for {missing}")


def counted_in(row: UpdateRow) -> int:
    """The round that was open when an update was counted, whichever it names."""
    return row.round + int(row.header.get("stale", 0))


def _apply(
    x: NDArray[np.float32], message: Round, counted: list[tuple[_Moved, int]]
) -> NDArray[np.float32]:
    """x + server_lr * sum(n_i delta_y_i) / sum(n_i): exact, then once in float64, then rounded.

    ``counted``: what each update moved, and how many rounds late it was.
    """
    moved, weight = [0] * len(counted[0][0].delta_y), 0
    for change, stale in counted:
        share = _share(message, change.body, stale)
        moved = [m + share * q for m, q in zip(moved, change.delta_y, strict=True)]
        weight += _share(message, change.body, 0)
    mean = np.array([float(m) / (weight * GRID) for m in moved])
    mean *= message.algorithm["server_lr"]
    x = x.copy()
    x[: len(mean)] = (x[: len(mean)].astype(np.float64) + mean).astype(np.float32)
    return x


def _share(message: Round, body: Body, stale: int) -> int:
    """The weight of delta_y in the round that counts it."""
    samples = body.header.samples if message.weighting == "samples" else 1
    return samples * LATE[stale] if message.buffering else samples


def add(a: list[int], b: list[int]) -> list[int]:
    return [p + q for p, q in zip(a, b, strict=True)]
