"""Counting updates: offered, granted, received, verified, written, added. Each once.

The ledger's transaction is the moment of counting. Before it nothing has happened;
after it the update is part of C for good, and of its round's model if the round
closes.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from kellet import kernels
from kellet.sdk.errors import ProtocolError, StorageError
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.body import Body, body_limit, decode_body, leave_limit
from kellet.sdk.protocol.effects import Effect, Publish, Report
from kellet.sdk.protocol.limits import MAX_PARTS
from kellet.sdk.protocol.messages import NO_BASE, Codecs, Offer, Receipt, update_uid
from kellet.sdk.protocol.parts import part_count
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.protocol.vectors import Shapes
from kellet.server.halves import Counted
from kellet.server.ledger import Ledger, UpdateRow
from kellet.server.opened import Named, OpenRound
from kellet.server.roster import Roster
from kellet.server.sums import ExactSum
from kellet.server.uploads import Spool, Transfer, Uploads
from kellet.server.verify import header_fault, vector_fault

__all__ = ["Counting"]

I64 = NDArray[np.int64]


class Counting:
    """The way of an update from its offer to its receipt, and C, the sum of the controls.

    ``opened`` in the methods is the round that is open, or None; an update is counted in
    no other, whichever announcement it names.
    """

    def __init__(
        self,
        shapes: Shapes,
        topics: Topics,
        *,
        ledger: Ledger,
        roster: Roster,
        spool: Spool,
        worker: str,
        admission: int,
        control: ExactSum,
        epoch: int,
    ) -> None:
        self._shapes = shapes
        self._topics = topics
        self._ledger = ledger
        self._roster = roster
        self._spool = spool
        self._uploads = Uploads(topics, worker, spool, admission)
        self.control = control
        self.epoch = epoch
        self.refused = 0

    @property
    def wake(self) -> float | None:
        return self._uploads.wake

    def tick(self, now: float) -> None:
        self._uploads.tick(now)

    def forget(self, device: str, pending: bytes | None) -> None:
        """Drop what an older process of the device was sending, unless it is this one's, too.

        After a restored backup both may have a body under one name. Only the body of the process
        that takes the receipt may count.
        """
        self._uploads.forget(device, pending)

    def replay(self, opened: OpenRound | None) -> None:
        """After a restart: add again what was counted since the last checkpoint."""
        rows = self._ledger.spooled()
        for row in rows:
            raw = self._spool.read(row.uid, row.header["size"])
            named = opened.named_round(row.round) if opened else None
            if row.kind == "update" and named is None:
                raise StorageError(
                    f"what the counted update {row.uid.hex()} names is gone",
                    why=f"the control of round {row.round} is not in the state directory",
                    repair="restore the state directory from a backup",
                )
            body = decode_body(raw, self._shapes, _codecs(named).share)
            self._add(opened, row, body, self._delta_c(opened, body))
        if opened is None:
            # With a round open, what had arrived of other updates is still of use.
            self._spool.clear(keep=frozenset(row.uid for row in rows))

    def checkpointed(self, *, go_on: bool = False) -> None:
        """A checkpoint covers all that was counted, and the bodies of it are done with.

        So are the transfers under way, unless they ``go_on`` into the next round.
        """
        if not go_on:
            self._uploads.drop_all()
        self._spool.clear(keep=self._uploads.names)

    def new_epoch(self, epoch: int) -> None:
        """C = 0."""
        self.epoch = epoch
        self.control = ExactSum(self._shapes.n_train)
        self.checkpointed()

    def offer(
        self, device: str, offer: Offer, opened: OpenRound | None, now: float
    ) -> list[Effect]:
        """An update is ready: its receipt if it has one, a grant, or patience.

        Raises ``ProtocolError`` for an offer that no device makes.
        """
        self._check_offer(offer, opened)
        known = self._ledger.receipt(offer.uid)
        if known is not None:
            return [self._say(device, known)]
        reason = self._offer_fault(device, offer, opened)
        if reason:
            self._uploads.finished(offer.uid)  # late by now, where it was begun in time
            return self._refuse(device, offer, reason)
        transfer, effects = self._uploads.offer(device, offer, now)
        return effects + (self._complete(transfer, opened) if transfer else [])

    def part(self, device: str, raw: bytes, opened: OpenRound | None, now: float) -> list[Effect]:
        """A part arrived. ``ProtocolError`` for bytes that are no part, or none of ours."""
        transfer, effects = self._uploads.part(device, raw, now)
        return effects + (self._complete(transfer, opened) if transfer else [])

    # -- one update ---------------------------------------------------------------

    def _offer_fault(self, device: str, offer: Offer, opened: OpenRound | None) -> str:
        """The reason of a refusal that needs no bytes, or empty."""
        member = self._roster.member(device)
        if member is None or member.nonce != offer.nonce:
            return "identity"
        if offer.seq <= member.last_seq:
            return "sequence"
        if offer.base == NO_BASE:
            return ""  # a leave
        named = opened.named(offer.base) if opened else None
        if named is None:
            return "late" if self._ledger.announced(offer.round) else "foreign"
        if self._ledger.has_counted(named.message.round, device):
            return "duplicate"
        return ""

    def _check_offer(self, offer: Offer, opened: OpenRound | None) -> None:
        """``ProtocolError`` for an offer that no device makes: it was damaged on its way.

        It is not answered. A receipt is final for the device; the same update, offered as it
        was meant, may have been granted already and be counted in a moment.
        """
        if offer.uid != update_uid(offer.nonce, offer.seq, offer.base):
            # Or it could take the name of another device's update.
            raise ProtocolError("an offer whose name is not its work's")
        named = opened.named(offer.base) if opened else None
        if offer.base == NO_BASE:
            number = 0
        elif named is not None:
            number = named.message.round
        else:
            return  # late: the answer is the same whatever it has
        if offer.round != number:
            raise ProtocolError(f"an offer for round {offer.round}, whose base is {number}'s")
        limit = leave_limit(self._shapes)
        if number:
            codecs = _codecs(named)
            limit = body_limit(self._shapes, codecs.delta_y, codecs.delta_c, codecs.share)
        if not 0 < offer.size <= limit or part_count(offer.size, offer.part_size) > MAX_PARTS:
            raise ProtocolError(f"an offer of {offer.size} bytes", why=f"updates have {limit}")

    def _complete(self, transfer: Transfer, opened: OpenRound | None) -> list[Effect]:
        """All parts are here: count the update, or say why not."""
        device, offer = transfer.device, transfer.offer
        body: Body | None = None
        reason = "digest" if transfer.damaged else self._offer_fault(device, offer, opened)
        if not reason:
            try:
                share = _codecs(opened.named(offer.base) if opened else None).share
                body = decode_body(transfer.assembly.data(), self._shapes, share)
            except ProtocolError:
                reason = "header"
        if body is not None:
            reason = self._body_fault(body, device, offer, opened)
        if reason or body is None:
            self._uploads.finished(offer.uid)
            return self._refuse(device, offer, reason, self._row(device, offer, body, reason))
        opened = opened if body.header.kind == "update" else None
        delta_c = self._delta_c(opened, body)
        row = self._row(device, offer, body, "counted", opened, delta_c)
        member = self._roster.counted(row)
        self._spool.keep(offer.uid, transfer.assembly)
        self._ledger.write_update(row, member)
        self._roster.remember(member)
        self._uploads.finished(offer.uid)
        self._add(opened, row, body, delta_c)
        receipt = Receipt(uid=row.uid, seq=row.seq, round=row.round, counted=True, reason="counted")
        news = Report("counted", {"device": device, "round": row.round, "kind": row.kind})
        return [self._say(device, receipt), news]

    def _body_fault(self, body: Body, device: str, offer: Offer, opened: OpenRound | None) -> str:
        """The reason of a refusal that the bytes give, or empty."""
        header = body.header
        if (header.kind == "leave") != (offer.base == NO_BASE):
            return "header"
        if header.kind == "leave":
            if (header.device, header.nonce, header.seq) != (device, offer.nonce, offer.seq):
                return "identity"
            if header.epoch != self.epoch:
                return "epoch"
            return "" if self._is_control(body.c_i, device) else "inconsistent"
        assert opened is not None  # _offer_fault has seen to it
        terms = opened.terms_of(offer.base)
        fault = header_fault(header, terms, device, offer) or vector_fault(body, terms)
        if not fault and header.spared is True and not self._is_control(None, device):
            return "inconsistent"  # a newcomer's control is zero
        return fault or ("" if opened.can_add(body) else "range")

    def _is_control(self, c_i: I64 | None, device: str) -> bool:
        """Whether a leave takes back what was counted from this member, and no more."""
        member = self._roster.member(device)
        assert member is not None  # _offer_fault has seen to it
        audit = 0 if c_i is None else kernels.linear_digest(c_i, self.epoch)
        return audit == member.audit

    def _refuse(
        self, device: str, offer: Offer, reason: str, row: UpdateRow | None = None
    ) -> list[Effect]:
        """Not counted; what came with its bytes is also written down."""
        self.refused += 1
        if row is not None:
            self._ledger.write_update(row)
        receipt = Receipt(
            uid=offer.uid, seq=offer.seq, round=offer.round, counted=False, reason=reason
        )
        news = Report("refused_update", {"device": device, "round": offer.round, "reason": reason})
        return [self._say(device, receipt), news]

    def _delta_c(self, opened: OpenRound | None, body: Body) -> I64 | None:
        """What counting ``body`` adds to its device's control, int64 [n_train] on the grid."""
        if body.c_i is not None:
            return -body.c_i
        if body.delta_c is not None:
            return kernels.to_grid(body.delta_c)
        if body.header.delta_c == "derived":
            assert opened is not None
            terms = opened.terms_of(body.header.base)
            assert body.delta_y is not None
            trained = body.delta_y[: self._shapes.n_train]
            # c_a is of the announcement that the update names. C has moved on since: derived from
            # it, c_i would part from C unseen.
            c_a = terms.c_a(body.header)
            return terms.algorithm.control_change(c_a, trained, body.header.rate_sum)
        return None

    def _row(  # noqa: PLR0917
        self,
        device: str,
        offer: Offer,
        body: Body | None,
        reason: str,
        opened: OpenRound | None = None,
        delta_c: I64 | None = None,
    ) -> UpdateRow:
        header = msgspec.to_builtins(body.header) if body else {}
        for name in ("nonce", "base"):
            header.pop(name, None)
        header["size"] = offer.size
        weight = 0
        if delta_c is not None:
            member = self._roster.member(device)
            assert member is not None  # _offer_fault has seen to it
            held = opened.terms_of(offer.base).algorithm if opened and body else None
            if held is not None and held.weighs_controls and not member.audit:
                header["control_weight"] = header["samples"]  # its first, and frozen from here on
            elif member.weight != 1:
                header["control_weight"] = member.weight
        if opened is not None and body is not None:
            named = opened.named(offer.base)
            assert named is not None  # _offer_fault has seen to it
            weight = opened.weigh(Counted.of(header), named.stale)
            if opened.message.buffering:
                header["stale"] = named.stale
        return UpdateRow(
            uid=offer.uid,
            device=device,
            nonce=offer.nonce,
            kind=body.header.kind if body else "update",
            seq=offer.seq,
            round=offer.round,
            counted=reason == "counted",
            reason=reason,
            weight=weight,
            audit=0 if delta_c is None else kernels.linear_digest(delta_c, self.epoch),
            header=header,
        )

    def _add(
        self, opened: OpenRound | None, row: UpdateRow, body: Body, delta_c: I64 | None
    ) -> None:
        """Add a counted update to the sums: C always, the round's unless it is a leave.

        ``delta_c`` is the device's own; C takes it times the weight of its control.
        """
        if delta_c is not None:
            self.control.add_grid(delta_c, row.header.get("control_weight", 1))
        if row.kind == "update":
            # What no checkpoint covers is of the open round: closing one makes a checkpoint.
            assert opened is not None
            opened.add(row, body)

    def _say(self, device: str, receipt: Receipt) -> Publish:
        return Publish(self._topics.ctl(device), wire.pack(receipt))


def _codecs(named: Named | None) -> Codecs:
    """Of an announcement; a leave, which names none, needs none of its codecs."""
    return named.message.codecs if named else Codecs()
