"""Who is enrolled: memberships, fencing, and the live audit of controls."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import msgspec

from kellet.sdk.protocol.messages import Hello, Reject, Welcome
from kellet.server.ledger import Ledger, Member, UpdateRow

__all__ = ["Greeting", "Roster"]

MODULUS = 2**64
UNWRITTEN = 60.0  # s; how far what the ledger says of the last word of a device may lag


@dataclass(frozen=True, slots=True)
class Greeting:
    """The answer to a hello, and what there is to report about it."""

    answer: Welcome | Reject
    news: str = ""  # "", "enrolled", "returned", "fenced", "restored", "audit"
    detail: str = ""


class Roster:
    """The fleet as the ledger knows it, and which process speaks for each device.

    N counts active memberships and ghosts: a ghost's control is in C though its
    installation is gone. A newcomer (c_i = 0) changes N alone.
    """

    def __init__(
        self, ledger: Ledger, clock: Callable[[], float], ttl: float = float("inf")
    ) -> None:
        """``ttl``: the seconds after which a member counts as silent."""
        self._ledger = ledger
        self._clock = clock  # seconds on any clock that survives a restart
        # After a restart nobody is to seem silent who was not: a hundredth of it does not matter.
        self._unwritten = min(UNWRITTEN, ttl / 100)
        self._written: dict[tuple[str, bytes], float] = {}  # when the ledger heard them last
        self._members: dict[tuple[str, bytes], Member] = {}
        self._active: dict[str, Member] = {}
        self._size = 0
        self._oldest = float("inf")  # no member was heard last before then
        self.reload()
        self._session: dict[str, tuple[bytes, bytes]] = {}
        self._fenced: dict[str, set[bytes]] = {}
        self._offline: set[str] = set()  # who has said so, or their last will

    def size(self) -> int:
        """N: every membership whose control is part of C."""
        return self._size

    def control_weight(self, *, weighted: bool) -> int:
        """The sum of the weights with which controls are in C: N, unless some are not 1.

        Where the fleet is ``weighted``, a member without a control, whose weight is not known
        yet, counts with the mean of those that are.
        """
        belonging = [m for m in self._members.values() if _belongs(m)]
        known = [m.weight for m in belonging if m.audit]
        unknown = len(belonging) - len(known)
        each = round(sum(known) / len(known)) if weighted and known else 1
        return sum(known) + unknown * each

    @property
    def enrolled(self) -> Collection[str]:
        """The devices that are enrolled."""
        return self._active.keys()

    @property
    def reachable(self) -> int:
        """How many of them are not known to be offline."""
        return len(self._active) - len(self._offline & self._active.keys())

    def hint(self, device: str, *, online: bool, boot: bytes) -> bool:
        """What is said of a device's link; whether it is of the process that speaks for it."""
        member = self._active.get(device)
        if member is None or member.boot != boot:
            return False
        (self._offline.discard if online else self._offline.add)(device)
        return True

    def active(self) -> list[str]:
        """The devices that are enrolled, by name."""
        return sorted(self._active)

    def member(self, device: str) -> Member | None:
        """The active membership of a device."""
        return self._active.get(device)

    def remember(self, member: Member) -> None:
        """Take over what a ledger transaction has written."""
        before = self._members.get((member.device, member.nonce))
        self._size += _belongs(member) - (before is not None and _belongs(before))
        self._oldest = min(self._oldest, member.seen)
        self._members[member.device, member.nonce] = member
        if member.state == "active":
            self._active[member.device] = member
        elif (now := self._active.get(member.device)) and now.nonce == member.nonce:
            del self._active[member.device]

    def reload(self) -> None:
        """Read again what the ledger has (a new epoch changes memberships)."""
        self._members.clear()
        self._active.clear()
        self._size = 0
        for member in self._ledger.members():
            self.remember(member)
            self._written[member.device, member.nonce] = member.seen

    def speaks_for(self, device: str, nonce: bytes, boot: bytes) -> bool:
        """Whether this process said hello last, and is enrolled."""
        member = self._active.get(device)
        enrolled = member is not None and member.nonce == nonce
        return enrolled and self._session.get(device) == (nonce, boot)

    def is_fenced(self, device: str, boot: bytes) -> bool:
        return boot in self._fenced.get(device, ())

    def hello(self, device: str, message: Hello, epoch: int) -> Greeting:
        """Admit, enrol, fence or send back."""
        if self.is_fenced(device, message.boot):
            return Greeting(
                self._reject("fenced", "a newer process uses this id", message), "fenced"
            )
        key = (device, message.nonce)
        known = self._members.get(key)
        if known and known.state == "left" and message.pending == known.last_uid:
            # It has left, and does not know yet: the receipt was lost.
            receipt = self._ledger.receipt(known.last_uid)
            welcome = Welcome(boot=message.boot, epoch=epoch, receipt=receipt, audit="none")
            return Greeting(welcome, "left")
        fault = self._check(known, message, epoch) if known else _stranger(message, epoch)
        if fault:
            # Nothing is changed yet: this may be an old message. Who is really not the
            # member that the ledger knows enrols anew, which makes that one a ghost.
            return Greeting(self._reject("restored", fault, message), "restored", fault)
        old = self._session.get(device)
        if old and old[1] != message.boot:
            self._fenced.setdefault(device, set()).add(old[1])
        self._session[device] = (message.nonce, message.boot)
        self._offline.discard(device)
        news = "returned" if known else "enrolled"
        other = self._active.get(device)
        if other and other.nonce != message.nonce:
            self._retire(other)
        member = replace(
            known or Member(device, message.nonce, "active", 0, b"", 0, 0, b"", 0, 0.0),
            state="active",
            incarnation=message.incarnation,
            boot=message.boot,
            seen=self._clock(),
            schemes=message.schemes,
            profile=message.profile,
        )
        if message.histogram is not msgspec.UNSET:
            member = replace(member, histogram=message.histogram)
        if known is None or replace(known, seen=member.seen) != member or self._lags(member):
            self._write(member)
        else:  # a hello again, as a device says it until it is answered
            self.remember(member)
        receipt = self._ledger.receipt(message.pending) if message.pending else None
        current = known is not None and message.epoch == epoch and not _behind(known, message)
        return Greeting(
            Welcome(
                boot=message.boot,
                epoch=epoch,
                receipt=receipt,
                audit="same" if current and message.audit is not None else "none",
            ),
            news,
        )

    def counted(self, row: UpdateRow) -> Member:
        """What the member becomes when ``row`` is counted; written with the row."""
        member = self._members[row.device, row.nonce]
        return replace(
            member,
            state="left" if row.kind == "leave" else member.state,
            counted=member.counted + 1,
            last_seq=row.seq,
            last_uid=row.uid,
            audit=(member.audit + row.audit) % MODULUS,
            seen=self._clock(),
            weight=row.header.get("control_weight", member.weight),
        )

    def heard(self, device: str) -> None:
        """The device has said something. Written down with whatever is written next."""
        member, now = self._active[device], self._clock()
        if member.seen != now:
            self.remember(replace(member, seen=now))

    def silent(self, ttl: float) -> list[str]:
        """Devices whose control is part of C and which nobody heard for ``ttl`` seconds."""
        now = self._clock()
        if now - self._oldest <= ttl:
            return []
        self._oldest = min((m.seen for m in self._members.values()), default=float("inf"))
        return [
            m.device
            for m in self._members.values()
            if _belongs(m) and m.counted and now - m.seen > ttl
        ]

    def forget_silent(self, ttl: float) -> list[str]:
        """Drop members never counted and silent for ``ttl`` seconds: exact, their c_i is 0."""
        now = self._clock()
        if now - self._oldest <= ttl:
            return []
        silent = [m for m in self._active.values() if m.counted == 0 and now - m.seen > ttl]
        for member in silent:
            self._write(replace(member, state="dropped"))
        return [m.device for m in silent]

    def _check(self, known: Member, message: Hello, epoch: int) -> str:
        """Why the installation cannot go on as this member; empty where it can."""
        replaced = known.state == "dropped" and known.device in self._active
        if known.state in ("ghost", "left") or replaced:
            return "this membership has ended"
        if message.epoch is not None and message.epoch > epoch:
            return "its control variate is of an epoch that this ledger does not know"
        if message.incarnation < known.incarnation or (
            message.incarnation == known.incarnation and message.boot != known.boot
        ):
            return "an older copy of this installation"
        if _behind(known, message):
            if message.boot == known.boot:
                return ""  # a process cannot fall behind itself: the message is an old one
            return "its state is older than its last counted update"
        if message.epoch != epoch or message.audit is None:
            return ""
        expected = known.audit
        if message.pending == known.last_uid:  # it waits for the receipt
            row = self._ledger.update(known.last_uid)
            assert row is not None
            expected = (expected - row.audit) % MODULUS
        if message.audit != expected:
            return "its control variate is not the one in the ledger"
        return ""

    def _lags(self, member: Member) -> bool:
        """Whether the ledger is to hear that the member was seen."""
        return not 0 <= member.seen - self._written[member.device, member.nonce] < self._unwritten

    def _retire(self, member: Member) -> None:
        self._write(replace(member, state="ghost" if member.counted else "dropped"))

    def _write(self, member: Member) -> None:
        self._ledger.write_member(member)
        self._written[member.device, member.nonce] = member.seen
        self.remember(member)

    def _reject(self, code: str, reason: str, message: Hello) -> Reject:
        return Reject(code=code, reason=reason, boot=message.boot, nonce=message.nonce)  # type: ignore[arg-type]


def _belongs(member: Member) -> bool:
    """Whether the member's control is part of C."""
    return member.state in ("active", "ghost")


def _behind(known: Member, message: Hello) -> bool:
    """Whether a hello is of a time before the member's last counted update."""
    return message.seq < known.last_seq and message.pending != known.last_uid


def _stranger(message: Hello, epoch: int) -> str:
    """Why an installation that the ledger does not know cannot enrol; empty where it can.

    A newcomer's control is zero. One that is not is counted in some other ledger, and so
    is one of an epoch to come; a control of an epoch that is over is void anyhow.
    """
    if message.epoch is not None and (
        message.epoch > epoch or (message.epoch == epoch and message.audit)
    ):
        return "its control variate is not known to this ledger"
    return ""
