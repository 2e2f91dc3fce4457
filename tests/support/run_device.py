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
from kellet.sdk.store import Store


def main(spec: dict[str, Any]) -> None:
    """``device``, ``broker``, ``state``, ``data`` (an .npz with x and y), ``options``.

    ``profile``: the name of a profile, and ``changes`` to its keys.
    ``modules``: report at the end what has been imported. ``pause``: seconds to wait in each
    round before training, as a slower device would.
    """

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


if __name__ == "__main__":
    serve(main, {"GradientSession": GradientSession, "Store": Store})
