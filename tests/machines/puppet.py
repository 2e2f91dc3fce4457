"""An aggregator's machine under a test's hand, and devices that the test plays itself."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.plan import Plan
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.body import UpdateHeader, encode_body
from kellet.sdk.protocol.effects import Publish, Report, Tick
from kellet.sdk.protocol.messages import (
    Blob,
    FromServer,
    Get,
    Grant,
    Hello,
    Join,
    Offer,
    Receipt,
    Round,
    ToAll,
    announcement_hash,
    update_uid,
)
from kellet.sdk.protocol.parts import bitmap, decode_part, encode_part, part_count
from kellet.sdk.transport.base import Connected, Received
from kellet.server import FleetConfig
from kellet.server.aggregator import AggregatorEffect, AggregatorMachine
from kellet.server.blobs import Blobs
from kellet.server.ledger import Ledger
from kellet.server.uploads import Spool

__all__ = ["Lab", "Puppet"]


class Lab:
    """An aggregator that is connected, its stores (in memory or in ``state``), and the time."""

    def __init__(
        self,
        plan: Plan,
        algorithm: FedAvg | None = None,
        *,
        state: Path | None = None,
        **config: Any,
    ) -> None:
        self.plan = plan
        defaults = {"target": 2, "min_members": 1, "rounds": 100, "over_select": 1.0}
        self.config = FleetConfig(algorithm=algorithm or Scaffold(), **(defaults | config))
        self.state = state
        self.now = 0.0
        self.age = 0.0  # of the fleet, on the clock that survives restarts
        self.ledger = Ledger(state / "ledger.db" if state else None)
        self.blobs = Blobs(state / "blobs" if state else None)
        self.spool = Spool(state / "spool" if state else None)
        self.effects: list[AggregatorEffect] = []
        self.start()

    def start(self, **config: Any) -> None:
        """A new process over the same stores; ``config`` is what its operator changed."""
        if config:
            self.config = FleetConfig(**(vars(self.config) | config))
        self.machine = AggregatorMachine(
            self.config,
            self.plan,
            ledger=self.ledger,
            blobs=self.blobs,
            spool=self.spool,
            clock=lambda: self.age,
        )
        self.step(Connected(None))

    def step(self, event: Any) -> list[AggregatorEffect]:
        """Take one event; what came of it, which ``effects`` gathers."""
        effects = self.machine.step(event, self.now)
        self.effects += effects
        return effects

    def wait(self, seconds: float) -> list[AggregatorEffect]:
        """Let time pass, with a tick at the end."""
        self.now += seconds
        self.age += seconds
        return self.step(Tick())

    @property
    def announcement(self) -> bytes:
        """The payload that the broker retains."""
        topic = self.machine.topics.round
        return [e for e in self.effects if isinstance(e, Publish) and e.topic == topic][-1].payload

    @property
    def round(self) -> Round:
        message = wire.unpack(self.announcement, ToAll)
        assert isinstance(message, Round), message
        return message

    @property
    def base(self) -> bytes:
        return announcement_hash(self.announcement)

    def reports(self, kind: str) -> list[dict[str, Any]]:
        return [e.data for e in self.effects if isinstance(e, Report) and e.kind == kind]

    def member_states(self) -> dict[str, list[str]]:
        """The states of each device's memberships, oldest first."""
        states: dict[str, list[str]] = {}
        for member in self.ledger.members():
            states.setdefault(member.device, []).append(member.state)
        return states


class Puppet:
    """A device played by the test: it says what it is told to say, right or wrong."""

    def __init__(self, lab: Lab, device: str = "a", *, hello: bool = True, **identity: Any) -> None:
        self.lab = lab
        self.device = device
        self.nonce: bytes = identity.get("nonce", hashlib.sha256(device.encode()).digest()[:16])
        self.boot: bytes = identity.get("boot", hashlib.sha256(self.nonce).digest()[:8])
        self.incarnation: int = identity.get("incarnation", 1)
        self.seq: int = identity.get("seq", 0)
        if hello:
            self.hello()

    def say(self, message: msgspec.Struct) -> list[Any]:
        """Send one request; what is answered to this device."""
        return self._answers(self.lab.machine.topics.req(self.device), wire.pack(message))

    def _answers(self, topic: str, payload: bytes) -> list[Any]:
        mine = self.lab.machine.topics.ctl(self.device)
        effects = self.lab.step(Received(topic, payload))
        return [
            wire.unpack(e.payload, FromServer)
            for e in effects
            if isinstance(e, Publish) and e.topic == mine
        ]

    def hello(self, **changes: Any) -> Any:
        fields: dict[str, Any] = {
            "nonce": self.nonce,
            "boot": self.boot,
            "incarnation": self.incarnation,
            "seq": self.seq,
            "pending": None,
            "epoch": None,
            "audit": None,
        }
        (answer,) = self.say(Hello(**(fields | changes)))
        return answer

    def join(self, **changes: Any) -> Any:
        """The answer to a join, or None."""
        lab = self.lab
        fields = {"nonce": self.nonce, "boot": self.boot, "round": lab.machine.round}
        answers = self.say(Join(**(fields | {"base": lab.base} | changes)))
        return answers[0] if answers else None

    def body(
        self,
        delta_y: ArrayLike | None,
        *,
        delta_c: ArrayLike | None = None,
        c_i: Any = None,
        codec: str | None = None,
        uplink: str | None = None,
        **header: Any,
    ) -> tuple[UpdateHeader, bytes]:
        """An update for the open round, with whatever is to be wrong in its header.

        ``codec``: of delta_c, ``uplink``: of delta_y, where it is not the one announced. Vectors
        in float32, or as bytes that are coded already.
        """
        round_ = self.lab.round
        fields: dict[str, Any] = {
            "kind": "update",
            "device": self.device,
            "nonce": self.nonce,
            "seq": self.seq + 1,
            "round": round_.round,
            "epoch": round_.epoch,
            "base": self.lab.base,
            "steps": 1,
            "rate_sum": 0.5,
            "samples": 1,
            "delta_y": uplink or round_.codecs.delta_y[0],
            "delta_c": codec or round_.codecs.delta_c,
        }
        made = UpdateHeader(**(fields | header))
        vectors = {
            name: given
            if given is None or isinstance(given, bytes)
            else np.asarray(given, np.float32)
            for name, given in (("delta_y", delta_y), ("delta_c", delta_c))
        }
        vectors["c_i"] = c_i
        return made, encode_body(made, **vectors)

    def offer(self, header: UpdateHeader, body: bytes, **changes: Any) -> Any:
        """Offer a body; the answer, or None."""
        fields: dict[str, Any] = {
            "nonce": self.nonce,
            "boot": self.boot,
            "uid": update_uid(header.nonce, header.seq, header.base),
            "round": header.round,
            "base": header.base,
            "seq": header.seq,
            "size": len(body),
            "part_size": self.lab.config.part_size,
            "sha256": hashlib.sha256(body).digest(),
        }
        answers = self.say(Offer(**(fields | changes)))
        return answers[0] if answers else None

    def part(self, uid: bytes, index: int, body: bytes, part_size: int = 0) -> list[Any]:
        """Send one part, of the fleet's size unless another is given; what is answered."""
        size = part_size or self.lab.config.part_size
        raw = encode_part(uid, index, body[index * size : (index + 1) * size])
        return self._answers(self.lab.machine.topics.up(self.lab.config.worker, self.device), raw)

    def deliver(self, header: UpdateHeader, body: bytes, **offer: Any) -> Any:
        """Offer, and send all parts where that is granted; the last answer."""
        answer = self.offer(header, body, **offer)
        if not isinstance(answer, Grant):
            return answer
        answers: list[Any] = []
        for index in range(part_count(len(body), self.lab.config.part_size)):
            answers = self.part(answer.uid, index, body) or answers
        return answers[-1] if answers else None

    def fetch(self, blob: Blob) -> dict[int, bytes]:
        """Ask for all parts of a blob by the announcement's size; what is published."""
        lab = self.lab
        count = part_count(blob.size, lab.round.part_size)
        missing = bitmap(range(count), count)
        self.say(Get(nonce=self.nonce, boot=self.boot, sha256=blob.sha256, missing=missing))
        parts: dict[int, bytes] = {}
        for effect in lab.wait(1):
            address = isinstance(effect, Publish) and lab.machine.topics.parse(effect.topic)
            if address and address.sha256 == blob.sha256:
                parts[address.part] = bytes(decode_part(effect.payload).payload)
        return parts

    def send(self, delta_y: ArrayLike | None, **how: Any) -> Receipt:
        """Join, make an update and deliver it; the receipt settles it."""
        self.join()
        header, body = self.body(delta_y, **how)
        receipt = self.deliver(header, body)
        assert isinstance(receipt, Receipt), receipt
        self.seq = header.seq
        return receipt
