"""An aggregator as a child process: ``python -m support.run_aggregator JSON``."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.child import serve, stop_on_sigterm, tell

from kellet.sdk import Plan, algorithms, personal
from kellet.server import Aggregator, FleetConfig
from kellet.server.ledger import Ledger


def main(spec: dict[str, Any]) -> None:
    """``plan`` (a file), ``broker``, ``state``, ``algorithm``, ``config``, ``options``.

    In ``config``, ``personal`` is a text. ``test``: an .npz with the x and y to evaluate on.
    """
    test = None
    if "test" in spec:
        with np.load(spec["test"]) as held:
            test = held["x"], held["y"]
    given = dict(spec["config"])
    if "personal" in given:
        given["personal"] = personal.parse(given["personal"])
    config = FleetConfig(algorithm=algorithms.make(**spec["algorithm"]), **given)
    aggregator = Aggregator(
        Plan.open(spec["plan"]),
        broker=spec["broker"],
        state=spec["state"],
        config=config,
        test=test,
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
