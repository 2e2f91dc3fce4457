"""Fleets that count late updates, and the devices that a test plays in them."""

from __future__ import annotations

from typing import Any

from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.protocol.messages import Receipt

__all__ = ["GRID", "PLAN", "SCAFFOLD", "deliver", "lab_of", "one_round_late", "sums"]

PLAN = linear_loss(1)
GRID = 2**48
SCAFFOLD = Scaffold()


def lab_of(algorithm: FedAvg = SCAFFOLD, **config: Any) -> Lab:
    """A lab that buffers, with two devices that will be enrolled; rounds close at 2 updates."""
    return Lab(PLAN, algorithm, **({"late": "buffer", "min_members": 2} | config))


def deliver(puppet: Puppet, delta_y: float, base: bytes, round_: int, **how: Any) -> Receipt:
    """An update that names any announcement; its receipt settles it."""
    header, body = puppet.body([delta_y], base=base, round=round_, **how)
    receipt = puppet.deliver(header, body)
    assert isinstance(receipt, Receipt), receipt
    puppet.seq = header.seq
    return receipt


def sums(lab: Lab) -> tuple[list[int], int, list[int]]:
    """Of the open round: the sum of delta_y, what it is divided by; and C."""
    opened = lab.machine._round
    assert opened is not None
    return opened.total.integers(), opened.weight, lab.machine.control.integers()


def one_round_late(lab: Lab) -> tuple[Puppet, Puppet, bytes]:
    """Round 1 closes at its deadline with a's update alone; round 2 is open, b still at work."""
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    base = lab.base
    b.join()
    assert a.send([1.0]).counted
    lab.wait(60)
    assert lab.machine.round == 2
    return a, b, base
