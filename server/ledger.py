"""The aggregator's ledger: what was received, counted and receipted.

Counting an update is one transaction, its row over its spooled bytes, and it is
irrevocable. Closing a round is another: the new model's digest and the sum of the
controls. Between two closings the sums are rebuilt from the last checkpoint and the
rows counted since. SQLite in WAL mode with ``synchronous=FULL``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from kellet.sdk.durable import Database, ReadInParts, room
from kellet.sdk.protocol.histograms import Histogram
from kellet.sdk.protocol.messages import FLOAT, Receipt

__all__ = ["Ledger", "Member", "RoundRow", "UpdateRow"]

_FORMAT = 1
_SCHEMA = """
create table if not exists fleet (
    id integer primary key check (id = 1),
    plan blob not null,
    epoch integer not null,
    round integer not null,
    closed integer not null,
    model blob not null,
    control blob not null
);
create table if not exists rounds (
    round integer primary key,
    announcement blob not null,
    state text not null,
    summary text not null
);
create table if not exists members (
    device text not null,
    nonce blob not null,
    state text not null,
    incarnation integer not null,
    boot blob not null,
    counted integer not null,
    last_seq integer not null,
    last_uid blob not null,
    audit text not null,
    seen real not null,
    primary key (device, nonce)
);
create table if not exists updates (
    uid blob primary key,
    device text not null,
    nonce blob not null,
    kind text not null,
    seq integer not null,
    round integer not null,
    counted integer not null,
    reason text not null,
    weight integer not null,
    audit text not null,
    spooled integer not null,
    header text not null
);
create table if not exists abilities (
    device text not null,
    nonce blob not null,
    schemes text not null,
    profile text not null,
    primary key (device, nonce)
);
create table if not exists weights (
    device text not null,
    nonce blob not null,
    weight integer not null,
    primary key (device, nonce)
);
create table if not exists histograms (
    device text not null,
    nonce blob not null,
    question blob not null,
    shares blob not null,
    epsilon real,
    primary key (device, nonce)
);
create table if not exists downlink (
    id integer primary key check (id = 1),
    residual blob not null
);
create table if not exists moments (
    id integer primary key check (id = 1),
    optimizer text not null,
    vectors blob not null
);
create unique index if not exists once_a_round
    on updates (round, device) where counted = 1 and kind = 'update';
create index if not exists spooled on updates (spooled) where spooled = 1;
"""

# C and the moments are the last in their rows (see ``durable.room``); and the row that has C is
# left alone where only the round changes: its number is that of the last row of rounds.

MemberState = Literal["active", "ghost", "left", "dropped"]


@dataclass(frozen=True, slots=True)
class Member:
    """A membership: one installation of one device.

    ``audit``: sum r_j c_ij mod 2^64 of its control as the ledger has it. ``counted``:
    how many of its updates were. A ghost's control stays in C though its installation
    is gone. ``schemes`` and ``profile``: what it said last that it can do. ``histogram``: what it
    told of its data, kept while it is active. ``weight``: of its control in C, for the epoch.
    """

    device: str
    nonce: bytes
    state: MemberState
    incarnation: int
    boot: bytes
    counted: int
    last_seq: int
    last_uid: bytes
    audit: int
    seen: float
    schemes: tuple[str, ...] = (FLOAT,)
    profile: str = ""
    histogram: Histogram | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """An update as the ledger has it."""

    uid: bytes
    device: str
    nonce: bytes
    kind: Literal["update", "leave"]
    seq: int
    round: int
    counted: bool
    reason: str
    weight: int
    audit: int
    header: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RoundRow:
    """A round: ``state`` is ``open``, ``closed`` or ``abandoned``."""

    round: int
    announcement: bytes
    state: str
    summary: dict[str, Any]


class Ledger:
    """The ledger in ``path``, or (None) in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._db = Database(path, _SCHEMA, _FORMAT)

    # -- the fleet ------------------------------------------------------------

    def fleet(self) -> tuple[bytes, int, int, int, bytes] | None:
        """(plan id, epoch, last round, rounds closed, model digest), or None where fresh."""
        rows = self._db.all(
            "select plan, epoch, (select coalesce(max(round), 0) from rounds), closed, model"
            " from fleet"
        )
        return rows[0] if rows else None

    @contextmanager
    def control(self) -> Iterator[ReadInParts]:
        """C as the last checkpoint has it, to be read in parts."""
        with self._db.blob("fleet", "control", 1) as blob:
            yield cast("ReadInParts", blob)  # whose slices typeshed takes for integers

    def found(self, plan: bytes, model: bytes, control: ReadInParts, epoch: int = 1) -> None:
        """The first entry: a fleet that trains ``plan`` from ``model``."""
        with self._db.transaction():
            slot, value = room(control)
            self._db.run(
                f"insert into fleet values (1, ?, ?, 0, 0, ?, {slot})", plan, epoch, model, value
            )
            self._db.fill("fleet", "control", 1, control)

    def new_epoch(self, epoch: int, control: ReadInParts, summary: dict[str, Any]) -> None:
        """C = 0: every membership's control is zero, and the ghosts are gone.

        What was counted and not yet folded into a checkpoint belongs to the old epoch. A
        round that is open is abandoned, with this summary.
        """
        with self._db.transaction():
            slot, value = room(control)
            self._db.run(f"update fleet set epoch = ?, control = {slot}", epoch, value)
            self._db.fill("fleet", "control", 1, control)
            self._db.run("update members set audit = '0', counted = 0")
            self._db.run("delete from weights")
            self._db.run("update members set state = 'dropped' where state = 'ghost'")
            self._db.run("update updates set spooled = 0")
            self._db.run(
                "update rounds set state = 'abandoned', summary = ? where state = 'open'",
                json.dumps(summary),
            )

    # -- rounds ---------------------------------------------------------------

    def open_round(
        self,
        round_: int,
        announcement: bytes,
        chosen: Collection[str] | None = None,
        residual: bytes | None = None,
    ) -> None:
        """``chosen``: the devices that alone belong to the round (in its summary while open).

        ``residual``: the digest of what the announced model left out of the exact one.
        """
        summary = {} if chosen is None else {"chosen": sorted(chosen)}
        with self._db.transaction():
            self._db.run(
                "insert into rounds values (?, ?, 'open', ?)",
                round_,
                announcement,
                json.dumps(summary),
            )
            self._db.run("delete from downlink")
            if residual is not None:
                self._db.run("insert into downlink values (1, ?)", residual)

    def residual(self) -> bytes | None:
        """The digest of what the last announced model left out; None where it was exact."""
        rows = self._db.all("select residual from downlink")
        return rows[0][0] if rows else None

    def current_round(self) -> RoundRow | None:
        """The open round, if one is open."""
        rows = self._rounds("where state = 'open'")
        return rows[0] if rows else None

    def last_announcement(self) -> bytes | None:
        """The payload that was announced last, if any was."""
        rows = self._db.all("select announcement from rounds order by round desc limit 1")
        return rows[0][0] if rows else None

    def rounds_since(self, round_: int) -> list[RoundRow]:
        """That round and all later ones, oldest first."""
        return self._rounds("where round >= ?", round_)

    def announced(self, round_: int) -> bool:
        """Whether there was such a round."""
        return bool(self._db.all("select 1 from rounds where round = ?", round_))

    def close_round(
        self,
        round_: int,
        *,
        closed: bool,
        model: bytes,
        control: ReadInParts,
        summary: dict[str, Any],
        moments: tuple[str, bytes] | None = None,
    ) -> None:
        """The round ends: model, C and what was spooled become one checkpoint.

        ``moments``: the server optimiser's name and vectors, after a round that closed. An
        abandoned one leaves them as they were.
        """
        slot, value = room(control)
        with self._db.transaction():
            self._db.run(
                "update rounds set state = ?, summary = ? where round = ?",
                "closed" if closed else "abandoned",
                json.dumps(summary),
                round_,
            )
            self._db.run(
                f"update fleet set round = ?, model = ?, closed = closed + ?, control = {slot}",
                round_,
                model,
                int(closed),
                value,
            )
            self._db.fill("fleet", "control", 1, control)
            if closed:
                self._db.run("delete from moments")
                if moments is not None:
                    name, vectors = moments
                    slot, value = room(vectors)
                    self._db.run(f"insert into moments values (1, ?, {slot})", name, value)
                    self._db.fill("moments", "vectors", 1, vectors)
            self._db.run("update updates set spooled = 0 where spooled = 1")

    def moments(self) -> tuple[str, bytes] | None:
        """What the server optimiser of the round that closed last goes on from, and its name."""
        rows = self._db.all("select optimizer, vectors from moments")
        return rows[0] if rows else None

    def annotate(self, round_: int, **facts: Any) -> None:
        """Add facts (an evaluation) to a round's summary."""
        with self._db.transaction():
            rows = self._db.all("select summary from rounds where round = ?", round_)
            if rows:
                summary = json.loads(rows[0][0]) | facts
                self._db.run(
                    "update rounds set summary = ? where round = ?", json.dumps(summary), round_
                )

    def summaries(self) -> list[tuple[int, dict[str, Any]]]:
        """(round, summary) of all rounds that ended, oldest first."""
        rows = self._db.all(
            "select round, summary from rounds where state != 'open' order by round"
        )
        return [(round_, json.loads(summary)) for round_, summary in rows]

    def rounds(self) -> list[RoundRow]:
        """All rounds, oldest first."""
        return self._rounds("")

    def _rounds(self, where: str, *values: object) -> list[RoundRow]:
        rows = self._db.all(
            f"select round, announcement, state, summary from rounds {where} order by round",
            *values,
        )
        return [_round_row(row) for row in rows]

    # -- members --------------------------------------------------------------

    def members(self) -> list[Member]:
        """All memberships there ever were."""
        rows = self._db.all(
            "select device, nonce, state, incarnation, boot, counted, last_seq, last_uid,"
            " audit, seen, schemes, profile from members left join abilities using (device, nonce)"
            " order by members.rowid"
        )
        told = {
            (device, nonce): Histogram(question=question, shares=shares, epsilon=epsilon)
            for device, nonce, question, shares, epsilon in self._db.all(
                "select device, nonce, question, shares, epsilon from histograms"
            )
        }
        weights = {
            (device, nonce): weight
            for device, nonce, weight in self._db.all("select device, nonce, weight from weights")
        }
        keys = [(row[0], row[1]) for row in rows]
        return [
            replace(_member(row), histogram=told.get(key), weight=weights.get(key, 1))
            for key, row in zip(keys, rows, strict=True)
        ]

    def write_member(self, *members: Member) -> None:
        """Add memberships or replace what is known of them."""
        with self._db.transaction():
            for m in members:
                self._write_member(m)
                if m.histogram is not None and m.state == "active":
                    self._db.run(
                        "insert or replace into histograms values (?, ?, ?, ?, ?)",
                        m.device,
                        m.nonce,
                        m.histogram.question,
                        m.histogram.shares,
                        m.histogram.epsilon,
                    )

    def _write_member(self, m: Member) -> None:
        self._db.run(
            "insert into members values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict do update set"
            " state = excluded.state, incarnation = excluded.incarnation, boot = excluded.boot,"
            " counted = excluded.counted, last_seq = excluded.last_seq,"
            " last_uid = excluded.last_uid, audit = excluded.audit, seen = excluded.seen",
            m.device,
            m.nonce,
            m.state,
            m.incarnation,
            m.boot,
            m.counted,
            m.last_seq,
            m.last_uid,
            str(m.audit),  # 64 bits unsigned do not fit SQLite's integer
            m.seen,
        )
        self._db.run(
            "insert or replace into abilities values (?, ?, ?, ?)",
            m.device,
            m.nonce,
            json.dumps(m.schemes),
            m.profile,
        )
        if m.weight != 1:
            self._db.run(
                "insert or replace into weights values (?, ?, ?)", m.device, m.nonce, m.weight
            )
        if m.histogram is None or m.state != "active":
            self._db.run("delete from histograms where device = ? and nonce = ?", m.device, m.nonce)

    # -- updates --------------------------------------------------------------

    def receipt(self, uid: bytes) -> Receipt | None:
        """The durable answer to an update, if it has one."""
        rows = self._db.all("select seq, round, counted, reason from updates where uid = ?", uid)
        if not rows:
            return None
        seq, round_, counted, reason = rows[0]
        return Receipt(uid=uid, seq=seq, round=round_, counted=bool(counted), reason=reason)

    def update(self, uid: bytes) -> UpdateRow | None:
        rows = self._updates("where uid = ?", uid)
        return rows[0] if rows else None

    def spooled(self) -> list[UpdateRow]:
        """Counted since the last checkpoint, in the order of counting."""
        return self._updates("where spooled = 1 and counted = 1 order by rowid")

    def counted(self, round_: int) -> list[UpdateRow]:
        """The counted updates that name a round."""
        return self._updates("where round = ? and counted = 1 and kind = 'update'", round_)

    def has_counted(self, round_: int, device: str) -> bool:
        """Whether an update of this device that names the round was counted."""
        of_round = "where round = ? and device = ? and counted = 1 and kind = 'update'"
        return bool(self._db.all(f"select 1 from updates {of_round}", round_, device))

    def samples(self) -> dict[str, int]:
        """n_i of each device's last counted update."""
        last = (
            "select max(rowid) from updates where counted = 1 and kind = 'update' group by device"
        )
        rows = self._db.all(
            f"select device, json_extract(header, '$.samples') from updates where rowid in ({last})"
        )
        return dict(rows)

    def _updates(self, where: str, *values: object) -> list[UpdateRow]:
        rows = self._db.all(
            "select uid, device, nonce, kind, seq, round, counted, reason, weight, audit,"
            f" header from updates {where}",
            *values,
        )
        return [_update_row(row) for row in rows]

    def write_update(self, row: UpdateRow, member: Member | None = None) -> None:
        """Count an update (with what becomes of its member), or record a refusal."""
        with self._db.transaction():
            self._db.run(
                "insert into updates values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                row.uid,
                row.device,
                row.nonce,
                row.kind,
                row.seq,
                row.round,
                row.counted,
                row.reason,
                row.weight,
                str(row.audit),
                row.counted,
                json.dumps(row.header),
            )
            if member is not None:
                self._write_member(member)

    def totals(self) -> tuple[int, int]:
        """(updates counted, updates refused after their bytes had come)."""
        rows = self._db.all("select coalesce(sum(counted), 0), count(*) from updates")
        return rows[0][0], rows[0][1] - rows[0][0]

    def close(self) -> None:
        self._db.close()


def _round_row(row: tuple[Any, ...]) -> RoundRow:
    round_, announcement, state, summary = row
    return RoundRow(round_, announcement, state, json.loads(summary))


def _member(row: tuple[Any, ...]) -> Member:
    device, nonce, state, incarnation, boot, counted, seq, uid, audit, seen, schemes, profile = row
    member = Member(device, nonce, state, incarnation, boot, counted, seq, uid, int(audit), seen)
    if schemes is None:  # a ledger from before there were schemes says nothing
        return member
    return replace(member, schemes=tuple(json.loads(schemes)), profile=profile)


def _update_row(row: tuple[Any, ...]) -> UpdateRow:
    uid, device, nonce, kind, seq, round_, counted, reason, weight, audit, header = row
    return UpdateRow(
        uid,
        device,
        nonce,
        kind,
        seq,
        round_,
        bool(counted),
        reason,
        weight,
        int(audit),
        json.loads(header),
    )
