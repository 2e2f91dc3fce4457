"""The peak memory of a whole device process: `kellet run`, rounds over a broker of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.command import Running
from support.fleet import Fleet

from kellet.sdk import Plan
from kellet.server.brokers import open_broker

__all__ = ["Measured", "measure"]

_DATA = """
import numpy as np

def load(device):
    with np.load({path!r}) as held:
        return held["x"], held["y"]
"""


class Measured:
    """What a device took: ``peak_mb`` by its own account, ``disk_mb``, ``up`` bytes a round."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self.disk_mb = 0.0
        self.up = 0
        self.schemes: set[str] = set()


def measure(
    folder: Path,
    plan: Plan,
    *,
    scheme: str,
    algorithm: str,
    batch: int,
    samples: int,
    rounds: int = 3,
    options: tuple[object, ...] = (),
) -> Measured:
    """Run one device through ``rounds`` of two steps each on random samples."""
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((samples, *plan.manifest.input.shape)).astype(np.float32)
    y = np.arange(samples, dtype=np.int64) % (plan.manifest.labels.classes or 2)
    (folder / "mine.py").write_text(_DATA.format(path=str(folder / "a.npz")))
    found = Measured()
    recipe = {"name": algorithm, "local_lr": 0.01, "batch_size": batch, "local_steps": 2}
    with (
        open_broker("embedded", state_dir=folder) as broker,
        Fleet(
            folder,
            plan=plan,
            clients={"a": (x, y)},
            broker=broker,
            algorithm=recipe,
            rounds=rounds,
            schemes=[scheme],
        ) as fleet,
    ):
        aggregator = fleet.aggregator()
        state = folder / "state"
        bulk = ("--separate-bulk",) if broker.separate_bulk else ()
        with Running(
            *("run", "a", "--broker", broker.url, "--data", "mine:load", "--state", state),
            *("--until-finished", *bulk, *options),
            cwd=folder,
        ) as device:
            for event in device.events():
                found.disk_mb = max(found.disk_mb, _size(state) / 1e6)
                if event["event"] == "trained":
                    found.schemes.add(event["scheme"])
                if event["event"] == "settled":
                    assert event["counted"], event
                    found.peak_mb, found.up = event["peak_mb"], event["bytes"]
            assert device.end().code == 0
        assert aggregator.end() == 0
    assert found.peak_mb
    return found


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # a file of the moment
            continue
    return total
