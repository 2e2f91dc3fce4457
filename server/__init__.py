"""What runs beside the broker: the aggregator, and whole fleets in simulation."""

from kellet.server.config import FleetConfig
from kellet.server.service import Aggregator
from kellet.server.simulate import History, State, simulate

__all__ = ["Aggregator", "FleetConfig", "History", "State", "simulate"]
