"""The fleets of real processes that ``tests/processes`` uses."""

from __future__ import annotations

from processes.conftest import broker, make_fleet, plan, wide_plan

__all__ = ["broker", "make_fleet", "plan", "wide_plan"]
