"""A device as a child process: ``python -m support.run_device JSON``."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from support.child import serve, stop_on_sigterm, tell

from kellet.sdk import Device
from kellet.sdk.plan import GradientSession
from kellet.sdk.profile import open_profile
from kellet.sdk.protocol.effects import Report
from kellet.sdk.shelf import Shelf
from kellet.sdk.store import Store


def main(spec: dict[str, Any]) -> None:
    """``device``, ``broker``, ``state``, ``data`` (an .npz with x and y), ``options``.

    ``profile``: the name of a profile, and ``changes`` to its keys.
    ``modules``: report at the end what has been imported. ``pause``: seconds to wait in each
    round before training, as a slower device would. ``step_seconds``: of computing, in each step
    of training, as for a larger model.
    """
    if "step_seconds" in spec:
        _slow_down(spec["step_seconds"])

    def report(what: Report) -> None:
        tell(what)
        if what.kind == "fetched":
            time.sleep(spec.get("pause", 0.0))

    with np.load(spec["data"]) as held:
        data = held["x"], held["y"]
    profile = None
    if "profile" in spec:
        profile = open_profile(spec["profile"]).changed(spec.get("changes", {}), where="changes")
    device = Device(
        spec["device"],
        broker=spec["broker"],
        state=spec["state"],
        data=data,
        profile=profile,
        on_report=report,
        **spec.get("options", {}),
    )
    stop_on_sigterm(device)
    device.run(until_finished=True)
    if spec.get("modules"):
        tell(Report("modules", {"names": sorted(sys.modules)}))


def _slow_down(seconds: float) -> None:
    real = GradientSession.step

    def step(self: GradientSession, *batch: Any) -> float:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sum(range(1000))  # holds the interpreter
        return real(self, *batch)

    GradientSession.step = step  # type: ignore[method-assign]


if __name__ == "__main__":
    serve(main, {"GradientSession": GradientSession, "Shelf": Shelf, "Store": Store})
