"""Many devices at once: a round without most of them, all of them together, and round after round.

The aggregator is the product's; the devices are played, and send what a device sends.
"""

from __future__ import annotations

import gc
import hashlib
import time
import tracemalloc
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic

from kellet.sdk.algorithms import Scaffold
from kellet.sdk.protocol.effects import Publish, Tick
from kellet.sdk.protocol.messages import Busy, Grant, Receipt
from kellet.sdk.protocol.parts import part_count
from kellet.server.simulate import simulate

__all__ = [
    "Rush",
    "Simulated",
    "close_without",
    "growth",
    "memory_by_round",
    "rush",
    "simulated",
]


def close_without(share: float, *, devices: int = 20, deadline: float = 60.0) -> tuple[float, int]:
    """A round of which ``share`` of the cohort is never heard again.

    (Seconds until it closed, devices counted.)
    """
    lab = Lab(linear_loss(4), Scaffold(), target=devices, quorum=1, deadline=deadline)
    crowd = [Puppet(lab, f"device-{index}") for index in range(devices)]
    for puppet in crowd:
        puppet.join()
    stay = round(devices * (1 - share))
    for index, puppet in enumerate(crowd[:stay]):
        puppet.send(np.full(4, index + 1.0))
    while lab.ledger.rounds()[0].state == "open":
        wake = lab.machine.wake
        assert wake is not None, "the round would wait for ever"
        lab.now = max(lab.now, wake)
        lab.step(Tick())
    row = lab.ledger.rounds()[0]
    assert row.state == "closed"
    return lab.now, len(row.summary["counted"])


@dataclass
class Rush:
    """What came of devices that all upload in one moment."""

    counted: int = 0
    busy: int = 0
    most_bytes_granted: int = 0
    peak_kb: float = 0.0  # of memory that the machines allocated, above what they had before
    digest: str = ""
    audits: list[int] = field(default_factory=list)


def rush(devices: int, *, n: int, admission: int, folder: Path, seed: int = 0) -> Rush:
    """``devices`` offer an update of ``n`` float32 at once, and try again while they are told to.

    Parts of all that have a grant are mixed as the seed says.
    """
    luck = Random(seed)
    lab = Lab(
        linear_loss(n),
        Scaffold(),
        state=folder,
        target=devices,
        deadline=1e6,
        admission=admission,
        part_size=1024,
    )
    crowd = [Puppet(lab, f"device-{index}") for index in range(devices)]
    result = Rush()
    waiting = list(range(devices))
    sending: list[tuple[int, Any, bytes, list[int]]] = []
    uploads = lab.machine._counting._uploads
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    while waiting or sending:
        luck.shuffle(waiting)
        still = []
        for index in waiting:
            header, body = crowd[index].body(_update(index, n))
            answer = crowd[index].offer(header, body)
            if isinstance(answer, Busy):
                result.busy += 1
                still.append(index)
                if len(still) > 20:  # the others would be told the same
                    break
                continue
            assert isinstance(answer, Grant), answer
            parts = list(range(part_count(len(body), 1024)))
            luck.shuffle(parts)
            sending.append((index, answer, body, parts))
        tried = {index for index, *_ in sending}
        waiting = [index for index in waiting if index not in tried]
        result.most_bytes_granted = max(result.most_bytes_granted, uploads.granted_bytes)
        while sending:
            at = luck.randrange(len(sending))
            index, grant, body, parts = sending[at]
            answers = crowd[index].part(grant.uid, parts.pop(), body)
            if not parts:
                sending.pop(at)
                (receipt,) = [a for a in answers if isinstance(a, Receipt)]
                result.counted += receipt.counted
                _forget(lab)
        _forget(lab)
        lab.now += 1
    result.peak_kb = (tracemalloc.get_traced_memory()[1] - before) / 1024
    tracemalloc.stop()
    result.digest = lab.machine.digest.hex()
    return result


def _forget(lab: Lab) -> None:
    """The test needs the last announcement alone; what it keeps is not the aggregator's."""
    said = [e for e in lab.effects if isinstance(e, Publish)]
    lab.effects[:] = [e for e in said if e.topic == lab.machine.topics.round][-1:]


def _least(lab: Lab) -> int:
    """Bytes in use. A connection keeps 80 of each cursor that is gone, until there are 200."""
    least = tracemalloc.get_traced_memory()[0]
    for _ in range(200):
        lab.ledger.totals()
        least = min(least, tracemalloc.get_traced_memory()[0])
    return least


def _update(index: int, n: int) -> Any:
    key = hashlib.sha256(f"{index}".encode()).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
    return rng.integers(-8, 9, n).astype(np.float32) / 8


@dataclass
class Simulated:
    """A simulated fleet's one round, run twice. ``exact``: whether its model is the mean."""

    counted: list[int]
    digests: list[str]
    seconds: list[float]
    exact: bool


def simulated(devices: int) -> Simulated:
    """Run the same fleet twice; each device moves by an eighth of its way to i % 7."""
    plan = quadratic(initial=1.0)
    clients = {
        f"device-{i}": (np.array([[1, i % 7]], np.float32), np.zeros(1, np.int64))
        for i in range(devices)
    }
    algorithm = Scaffold(local_lr=0.125, batch_size=0, local_steps=1)
    done = Simulated([], [], [], exact=True)
    # Exact in float32 from 1 on, and so is the mean.
    mean = np.float32(1 + sum(0.125 * (i % 7 - 1) for i in range(devices)) / devices)
    for _ in range(2):
        began = time.monotonic()
        run = simulate(plan, clients, algorithm, rounds=1, seed=3)
        done.seconds.append(time.monotonic() - began)
        done.counted.append(run.updates_counted)
        done.digests.append(run.digest)
        done.exact &= run.model.tolist() == [mean]
    return done


def growth(held: list[float]) -> float:
    """What a sample typically adds: the median slope of all pairs (Theil and Sen).

    A leak adds to every sample. A table of the interpreter's that doubles does once: that of
    the interned strings adds 1.9 MB after some 270 rounds, and never again.
    """
    pairs = [
        (held[j] - held[i]) / (j - i) for i in range(len(held)) for j in range(i + 1, len(held))
    ]
    return float(np.median(pairs))


def memory_by_round(rounds: int, *, devices: int = 4, every: int = 25) -> list[float]:
    """Kilobytes that an aggregator and its stores hold, every so many rounds."""
    lab = Lab(linear_loss(64), Scaffold(local_lr=0.125), target=devices, rounds=rounds + 1)
    crowd = [Puppet(lab, f"device-{index}") for index in range(devices)]
    held = []
    tracemalloc.start()
    try:
        for number in range(1, rounds + 1):
            for index, puppet in enumerate(crowd):
                puppet.send(np.full(64, (index - 1.5) / 64))
            _forget(lab)
            if number % every == 0:
                gc.collect()
                held.append(_least(lab) / 1024)
    finally:
        tracemalloc.stop()
    return held
