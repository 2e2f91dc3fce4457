"""An aggregator as a child process: ``python -m support.run_aggregator JSON``."""

from __future__ import annotations

from typing import Any

from support.child import serve, stop_on_sigterm, tell

from kellet.sdk import Plan, algorithms
from kellet.server import Aggregator, FleetConfig
from kellet.server.ledger import Ledger


def main(spec: dict[str, Any]) -> None:
    """``plan`` (a file), ``broker``, ``state``, ``algorithm``, ``config``, ``options``."""
    config = FleetConfig(algorithm=algorithms.make(**spec["algorithm"]), **spec["config"])
    aggregator = Aggregator(
        Plan.open(spec["plan"]),
        broker=spec["broker"],
        state=spec["state"],
        config=config,
        on_report=tell,
        **spec.get("options", {}),
    )
    stop_on_sigterm(aggregator)
    try:
        aggregator.run()
    finally:
        aggregator.close()


if __name__ == "__main__":
    serve(main, {"Ledger": Ledger})
