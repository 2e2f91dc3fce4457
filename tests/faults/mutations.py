"""Messages that somebody has changed on the way, delivered to a fleet in the middle of its rounds.

Each message of a running fleet may be followed by a changed copy of itself: bits turned over,
fields with other values, cut short, an old one said again, one device's under another's name.
What is left out is a receipt with the opposite verdict: it is believed. That the aggregator
said it is for the link (and its certificates) to say; the live audit finds such a device at
its next hello (``test_mutations``).
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import numpy as np
from faults.account import Broken
from faults.storms import ALGORITHMS, PLAN, UPLINKS, scratch
from faults.world import Climate, World, drawn_from

from kellet.sdk.algorithms import Scaffold
from kellet.sdk.protocol.limits import PART_HEADER

__all__ = ["KINDS", "Result", "changed_field", "run"]

KINDS = ("bits", "field", "cut short", "replayed", "another's", "part with a right checksum")
COPIES = 4
_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 7, 2**31 - 1, 2**63 - 1, 2**64 - 1, 0.0, -1.5, float("nan"),
    float("inf"), "", "x", "a" * 301, b"", bytes(8), bytes(16), bytes(32), [], {}, [[[[[[[]]]]]]],
]  # fmt: skip


@dataclass
class Result:
    """What became of ``delivered`` changed messages, by kind."""

    broken: str = ""
    delivered: Counter[str] = field(default_factory=Counter)
    counted: int = 0
    rounds: int = 0
    enrolled_anew: int = 0


class Tampered(World):
    """A fleet that hears up to ``COPIES`` changed copies of each message it hears."""

    def __init__(self, *args: Any, **config: Any) -> None:
        self.mutants = Random(f"mutants {config['seed']}")
        self.result = Result()
        self.tampering = True
        self._recent: list[tuple[str, bytes]] = []
        super().__init__(*args, **config)

    def check_public(self, *_: Any) -> None:
        """Who says another's nonce has it echoed: it knew it before."""

    def _send(self, node: Any, topic: str, payload: bytes) -> None:
        super()._send(node, topic, payload)
        self._recent = [*self._recent[-199:], (topic, payload)]
        for _ in range(COPIES if self.tampering else 0):
            self._tamper(node, topic, payload)

    def _tamper(self, node: Any, topic: str, payload: bytes) -> None:
        luck = self.mutants
        kind = luck.choice(KINDS)
        other = self._change(kind, topic, payload)
        if other is None or other == (topic, payload):
            return

        def arrive() -> None:
            if node.alive and node.up:
                self.result.delivered[kind] += 1
                node.inbox(*other)()

        self.after(luck.uniform(0, 2), arrive)

    def _change(self, kind: str, topic: str, payload: bytes) -> tuple[str, bytes] | None:
        luck = self.mutants
        match kind:
            case "bits":
                raw = bytearray(payload)
                for _ in range(luck.choice([1, 1, 2, 8])):
                    raw[luck.randrange(len(raw))] ^= 1 << luck.randrange(8)
                return topic, bytes(raw)
            case "field":
                raw_field = changed_field(payload, luck)
                return None if raw_field is None else (topic, raw_field)
            case "cut short":
                return topic, payload[: luck.randrange(len(payload))]
            case "replayed":
                return luck.choice(self._recent)
            case "another's":
                return self._under_another_name(topic, payload)
            case "part with a right checksum" if (
                len(payload) > PART_HEADER and payload[:4] == b"KLTP"
            ):
                raw = bytearray(payload)
                raw[luck.randrange(PART_HEADER, len(raw))] ^= 1 << luck.randrange(8)
                raw[28:32] = zlib.crc32(raw[PART_HEADER:]).to_bytes(4, "little")
                return topic, bytes(raw)
        return None

    def _under_another_name(self, topic: str, payload: bytes) -> tuple[str, bytes] | None:
        for name in self.devices:
            if f"/{name}/" in topic:
                other = self.mutants.choice(sorted(set(self.devices) - {name}))
                return topic.replace(f"/{name}/", f"/{other}/"), payload
        return None


def changed_field(payload: bytes, luck: Random) -> bytes | None:
    """The message with one of its fields changed, gone or added; None for what is no message."""
    try:
        message = msgpack.unpackb(payload)
    except Exception:
        return None
    if not isinstance(message, dict) or not message:
        return None
    inside = message
    while True:
        key = luck.choice(sorted(inside, key=str))
        if not isinstance(inside[key], dict) or not inside[key] or luck.random() < 0.5:
            break
        inside = inside[key]
    value, how = inside[key], luck.random()
    if how < 0.1:
        del inside[key]
    elif how < 0.2:
        inside[luck.choice(["v", "t", "round", "new"])] = luck.choice(_VALUES)
    elif how < 0.6 and isinstance(value, int) and not isinstance(value, bool):
        inside[key] = min(2**64 - 1, max(-(2**63), value + luck.choice([-1, 1, 2, 256])))
    elif how < 0.6 and isinstance(value, bytes) and value:
        inside[key] = luck.randbytes(len(value))
    else:
        inside[key] = luck.choice(_VALUES)
    return bytes(msgpack.packb(message))


def run(seed: int, messages: int) -> Result:
    """A fleet that is told ``messages`` changed messages, and then left alone for two minutes."""
    luck = Random(f"mutations {seed}")
    with scratch() as folder, drawn_from(Random(f"nonces {seed}")):
        world = _world(folder, luck, seed)
        result = world.result
        try:
            world.start()
            world.run(lambda: result.delivered.total() >= messages or world.over)
            world.tampering = False
            world.let_pass(120)
            world.hold("the end")
        except Broken as broken:
            result.broken = str(broken)
        world.close()
    result.counted, result.rounds = len(world.server.counted), len(world.server.rounds)
    result.enrolled_anew = sum(kind == "enrolled_anew" for _, kind, _ in world.reports)
    return result


def _world(folder: Path, luck: Random, seed: int) -> Tampered:
    algorithm = ALGORITHMS[seed % len(ALGORITHMS)]
    uplink = luck.choice(UPLINKS)
    derived = isinstance(algorithm, Scaffold) and algorithm.delta_c == "derived"
    world = Tampered(
        folder,
        PLAN,
        {name: np.full((3, 3), luck.randrange(-8, 9) / 8) for name in "abc"},
        algorithm,
        seed=seed,
        climate=Climate(slowest=0.1),
        rounds=400,
        target=3,
        quorum=1,
        deadline=20.0,
        min_members=1,
        part_size=1024,
        uplink=uplink,
        share=0.3,
        feedback=not derived and uplink != ("f32",),
        downlink=luck.choice(["f32", "q8"]),
    )
    world.training_takes = (0.1, 2.0)
    return world
