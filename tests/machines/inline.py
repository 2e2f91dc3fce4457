"""A simulation's own clients under a test's hand, once its rounds are over."""

from __future__ import annotations

from typing import Any

from kellet.sdk.transport.memory import MemoryBroker
from kellet.server.simulate import Simulation
from kellet.server.simulate.client import Client
from kellet.server.simulate.crew import Crew

__all__ = ["broker", "client", "settle", "tell"]


def client(sim: Simulation, name: str) -> Client:
    """One client, which trains in this process."""
    assert isinstance(sim._engine, Crew)
    return sim._engine._clients[name]


def broker(sim: Simulation) -> MemoryBroker:
    return sim._exchange._broker


def tell(sim: Simulation, name: str, event: Any) -> None:
    """Give a client an event; what it says about it is published."""
    sim._exchange._to_client(name, event)
    sim._exchange.flush()


def settle(sim: Simulation) -> None:
    """Until nobody has anything to do."""
    for _ in range(100):
        while sim._exchange.pump():
            pass
        if sim._exchange.pass_time() is None:
            return
