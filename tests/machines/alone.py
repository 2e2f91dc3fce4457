"""A device's machine by itself; the test plays the aggregator."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from support.toy_plans import linear_loss

from kellet.sdk.algorithms import Scaffold
from kellet.sdk.blobs import BlobCache
from kellet.sdk.device import DeviceMachine, Trained
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.effects import Publish, Report, Tick
from kellet.sdk.protocol.messages import (
    Blob,
    Codecs,
    FromDevice,
    Offer,
    Receipt,
    Round,
    Train,
    Welcome,
    announcement_hash,
)
from kellet.sdk.protocol.parts import decode_part, encode_part
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.store import Store
from kellet.sdk.trainer import Outcome
from kellet.sdk.transport.base import Connected, Received

__all__ = ["BOOT", "Alone", "N", "indices", "outcome"]

PLAN = linear_loss(600)  # a model of 2,400 bytes: 3 parts of 1,024
N = 600
BOOT = b"boot-one"


def outcome(**changes: Any) -> Outcome:
    delta_y = np.full(N, -0.5, np.float32)
    fields: dict[str, Any] = {
        "delta_y": delta_y,
        "delta_y_sent": delta_y.tobytes(),
        "delta_c": np.full(N, 2**48, np.int64),
        "delta_c_sent": None,
        "steps": 1,
        "rate_sum": 0.5,
        "samples": 3,
        "loss": 1.0,
        "objective": 1.0,
        "drift": 12.0,
    }
    return Outcome(**(fields | changes))


@dataclass
class Alone:
    """The machine, a store in memory, and the messages of an aggregator that the test plays."""

    now: float = 0.0
    effects: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.topics = Topics("fleet")
        self.store = Store("a", nonce=b"n" * 16)
        self.cache = BlobCache()
        self.cache.put(PLAN.raw)
        self.machine = DeviceMachine(self.topics, self.store, self.cache, boot=BOOT)
        self.model = np.arange(N, dtype=np.float32).tobytes()
        self.control = np.zeros(N, np.float32).tobytes()

    def step(self, event: Any) -> list[Any]:
        made = self.machine.step(event, self.now)
        self.effects += made
        return made

    def said(self, effects: list[Any]) -> list[Any]:
        """The requests among these effects."""
        topic = self.topics.req("a")
        return [
            wire.unpack(e.payload, FromDevice)
            for e in effects
            if isinstance(e, Publish) and e.topic == topic
        ]

    def hear(self, message: msgspec.Struct) -> list[Any]:
        return self.said(self.step(Received(self.topics.ctl("a"), wire.pack(message))))

    def wait(self, seconds: float) -> list[Any]:
        """What is said in that time: a tick whenever the machine wants one."""
        end, said = self.now + seconds, []
        while self.machine.wake is not None and self.machine.wake <= end:
            self.now = max(self.now, self.machine.wake)
            said += self.said(self.step(Tick()))
        self.now = end
        return said

    def connect(self) -> list[Any]:
        return self.said(self.step(Connected(None)))

    def welcome(self, epoch: int = 1, **fields: Any) -> list[Any]:
        answer = {"boot": BOOT, "epoch": epoch, "receipt": None, "audit": "none"} | fields
        return self.hear(Welcome(**answer))

    def announce(self, number: int = 1, **changes: Any) -> bytes:
        """Publish an announcement; its hash."""
        raw = self.announcement(number, **changes)
        self.step(Received(self.topics.round, raw))
        return announcement_hash(raw)

    def announcement(self, number: int = 1, **changes: Any) -> bytes:
        fields: dict[str, Any] = {
            "round": number,
            "epoch": 1,
            "plan": Blob(PLAN.id, len(PLAN.raw)),
            "model": Blob(hashlib.sha256(self.model).digest(), len(self.model)),
            "control": Blob(hashlib.sha256(self.control).digest(), len(self.control)),
            "algorithm": Scaffold().wire(),
            "weighting": "uniform",
            "codecs": Codecs(delta_c="derived"),
            "members": 1,
            "target": 1,
            "quorum": 1,
            "deadline": 60.0,
            "valid": 60.0,
            "part_size": 1024,
            "seed": 0,
        }
        return wire.pack(Round(**(fields | changes)))

    def serve(self, data: bytes) -> list[Any]:
        """Publish all parts of a blob."""
        effects: list[Any] = []
        sha256 = hashlib.sha256(data).digest()
        for index in range(-(-len(data) // 1024)):
            part = encode_part(sha256[:16], index, data[index * 1024 : (index + 1) * 1024])
            effects += self.step(Received(self.topics.blob(sha256, index), part))
        return effects

    def train(self, number: int = 1, **changes: Any) -> bytes:
        """Connect and go on until training begins; the announcement's hash."""
        if not self.machine.linked:
            self.connect()
            self.welcome()
        base = self.announce(number, **changes)
        self.hear(Train(round=number, base=base, seconds=50.0))
        for data in (self.model, self.control):
            if hashlib.sha256(data).digest() not in self.cache:
                self.serve(data)
        assert self.machine.doing == "training"
        return base

    def offer(self, number: int = 1) -> Offer:
        """Go on until an update is offered."""
        base = self.train(number)
        (offer,) = self.said(self.step(Trained(base, outcome())))
        assert isinstance(offer, Offer)
        return offer

    def receipt(self, offer: Offer, counted: bool = True, reason: str = "counted") -> list[Any]:
        return self.hear(
            Receipt(uid=offer.uid, seq=offer.seq, round=offer.round, counted=counted, reason=reason)
        )

    def reports(self, kind: str) -> list[Any]:
        return [e.data for e in self.effects if isinstance(e, Report) and e.kind == kind]


def indices(effects: list[Any]) -> list[int]:
    """The parts of an update among these effects."""
    return [decode_part(e.payload).index for e in effects if isinstance(e, Publish) and e.bulk]
