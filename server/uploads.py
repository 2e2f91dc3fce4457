"""Updates on their way in: admission by bytes, parts by bitmap, leases."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from kellet.sdk.errors import StorageError
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.assembly import Assembly
from kellet.sdk.protocol.effects import Effect, Publish, Report
from kellet.sdk.protocol.messages import Ack, Busy, Grant, Offer
from kellet.sdk.protocol.parts import decode_part
from kellet.sdk.protocol.topics import Topics
from kellet.server.patience import Queue

__all__ = ["Spool", "Transfer", "Uploads"]

WINDOW = 8
LEASE = 30.0
WRONG_DIGESTS = 3


class Spool:
    """Where update bodies lie until a checkpoint covers them: a directory, or memory."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._held: dict[bytes, bytes] = {}
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    def path(self, uid: bytes) -> Path | None:
        return None if self._directory is None else self._directory / f"{uid.hex()}.up"

    def keep(self, uid: bytes, assembly: Assembly) -> None:
        """Make a complete body durable."""
        if self._directory is None:
            self._held[uid] = assembly.data()
        else:
            assembly.sync()

    def read(self, uid: bytes, size: int) -> bytes:
        """A kept body of ``size`` bytes."""
        path = self.path(uid)
        if path is None:
            return self._held[uid]
        try:
            data = path.read_bytes()[:size]
        except OSError as error:
            data = b""
            why = error.strerror or str(error)
        else:
            why = f"it has {len(data)} of {size} bytes"
        if len(data) < size:
            raise StorageError(
                f"the counted update {uid.hex()} cannot be read back",
                why=why,
                repair="restore the state directory from a backup",
            )
        return data

    def clear(self, keep: frozenset[bytes] = frozenset()) -> None:
        """Let go of all bodies but ``keep``."""
        self._held = {uid: body for uid, body in self._held.items() if uid in keep}
        if self._directory is not None:
            names = {f"{uid.hex()}.up" for uid in keep}
            for path in self._directory.iterdir():
                if path.name not in names:
                    path.unlink(missing_ok=True)


@dataclass
class Transfer:
    """A granted update."""

    device: str
    offer: Offer
    assembly: Assembly
    expires: float
    since_ack: int = 0
    wrong: int = 0

    @property
    def damaged(self) -> bool:
        """All parts came several times, and the digest is still not the one offered."""
        return self.wrong >= WRONG_DIGESTS


class Uploads:
    """All transfers of this worker. At most ``admission`` bytes are granted at once.

    What is asked at every message takes the same time for any number of transfers.
    """

    def __init__(self, topics: Topics, worker: str, spool: Spool, admission: int) -> None:
        self._topics = topics
        self._worker = worker
        self._spool = spool
        self._admission = admission
        # Of both the first is wanted: a dict would look through all that were taken out.
        self._open: OrderedDict[bytes, Transfer] = OrderedDict()  # as leases end
        self._began: OrderedDict[bytes, float] = OrderedDict()  # the oldest first
        self.granted_bytes = 0
        self._queue = Queue(admission)
        self.received = 0

    @property
    def wake(self) -> float | None:
        return next((t.expires for t in self._open.values()), None)

    def offer(self, device: str, offer: Offer, now: float) -> tuple[Transfer | None, list[Effect]]:
        """Grant, or ask for patience; the transfer where nothing is missing any more.

        A disk that is full asks for patience, too, and says so here. What had arrived
        before a restart is still in the spool, and is not asked for again.
        """
        transfer = self._open.get(offer.uid)
        if transfer is not None and (transfer.device, transfer.offer.sha256) != (
            device,
            offer.sha256,
        ):
            return None, []
        if transfer is not None and (transfer.offer.part_size, transfer.offer.size) != (
            offer.part_size,
            offer.size,
        ):
            self._close(transfer)
            transfer = None
        if transfer is None:
            if self._open and self.granted_bytes + offer.size > self._admission:
                return None, [self._busy(device, offer, "many uploads are under way", now)]
            try:
                assembly = Assembly(
                    offer.size, offer.part_size, offer.sha256, self._spool.path(offer.uid)
                )
            except StorageError as error:
                busy = self._busy(device, offer, "the aggregator's disk is full", now)
                return None, [busy, Report("storage", {"error": str(error)})]
            transfer = Transfer(device, offer, assembly, expires=now + LEASE)
            self._open[offer.uid] = transfer
            self._began[offer.uid] = now
            self.granted_bytes += offer.size
            self._queue.leave(offer.uid)
        self._renew(transfer, now)
        if transfer.assembly.verified():
            return transfer, []
        grant = Grant(
            uid=offer.uid,
            worker=self._worker,
            missing=transfer.assembly.missing,
            window=WINDOW,
            lease=LEASE,
        )
        return None, [self._say(device, grant)]

    def part(self, device: str, raw: bytes, now: float) -> tuple[Transfer | None, list[Effect]]:
        """A part arrived; the transfer where it is complete (or damaged for good).

        Raises ``ProtocolError`` for bytes that are no part, or none of ours.
        """
        part = decode_part(raw)
        transfer = self._open.get(part.uid)
        if transfer is None or transfer.device != device:
            return None, []
        fresh = transfer.assembly.add(part.index, part.payload)
        self.received += len(raw)
        self._renew(transfer, now)
        if transfer.assembly.verified():
            self._queue.took(now - self._began[part.uid])
            return transfer, []
        if transfer.assembly.missing_count == transfer.assembly.count:
            transfer.wrong += 1
            if transfer.damaged:
                return transfer, []
        transfer.since_ack += fresh
        if transfer.since_ack * 2 >= WINDOW or not fresh:
            transfer.since_ack = 0
            return None, [self._say(device, Ack(uid=part.uid, missing=transfer.assembly.missing))]
        return None, []

    def finished(self, uid: bytes) -> None:
        """The ledger has answered; its bytes are the spool's business now."""
        self._queue.leave(uid)
        transfer = self._open.get(uid)
        if transfer is not None:
            self._close(transfer)

    def forget(self, device: str, keep: bytes | None) -> None:
        """A new process speaks for the device: of its transfers it knows ``keep`` alone."""
        for transfer in list(self._open.values()):
            if transfer.device == device and transfer.offer.uid != keep:
                self._close(transfer)

    def tick(self, now: float) -> None:
        """Leases without progress end; what has arrived waits in the spool."""
        while self.wake is not None and now >= self.wake:
            self._close(next(iter(self._open.values())))

    @property
    def names(self) -> frozenset[bytes]:
        """The updates that are under way."""
        return frozenset(self._open)

    def drop_all(self) -> None:
        """The round is over."""
        for transfer in list(self._open.values()):
            self._close(transfer)

    def _close(self, transfer: Transfer) -> None:
        del self._open[transfer.offer.uid], self._began[transfer.offer.uid]
        self.granted_bytes -= transfer.offer.size
        transfer.assembly.close()

    def _renew(self, transfer: Transfer, now: float) -> None:
        """Begin the lease anew; it is then the last to end."""
        transfer.expires = now + LEASE
        self._open.move_to_end(transfer.offer.uid)

    def _busy(self, device: str, offer: Offer, reason: str, now: float) -> Publish:
        oldest = next(iter(self._began.values()), now)
        after = self._queue.after(device, offer.uid, offer.size, now, oldest=oldest)
        return self._say(device, Busy(after=after, uid=offer.uid, reason=reason))

    def _say(self, device: str, message: Grant | Ack | Busy) -> Publish:
        return Publish(self._topics.ctl(device), wire.pack(message))
