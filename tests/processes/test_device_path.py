"""A device's process is light: what it imports and what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fleet import MakeFleet

from kellet.sdk import Plan
from kellet.sdk.tasks import task

HAR = Path(__file__).parents[2] / "examples" / "har"

# Whole packages that a device has no use for, and most of which are not installed on it.
FOREIGN = (
    "IPython",
    "cryptography",
    "iotcore",
    "kellet.sdk.authoring",
    "kellet.server",
    "llvmlite",
    "matplotlib",
    "numba",
    "onnx",
    "onnxscript",
    "pandas",
    "prometheus_client",
    "pytest",
    "ray",
    "scipy",
    "starlette",
    "torch",
    "uvicorn",
)


def test_a_real_round_imports_nothing_foreign(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a", rounds=1)
    aggregator, device = fleet.aggregator(), fleet.device("a", modules=True)
    assert [aggregator.end(), device.end()] == [0, 0]
    names = set(device.reports("modules")[0]["names"])
    assert {"kellet.sdk.runner", "kellet.kernels", "onnxruntime"} <= names
    foreign = [n for n in names if any(n == f or n.startswith(f + ".") for f in FOREIGN)]
    assert foreign == []


def test_peak_memory_on_the_har_plan(make_fleet: MakeFleet) -> None:
    """SCAFFOLD at batch 32, on the windows of three users (about 1,000): below 150 MB."""
    if not HAR.exists():
        pytest.skip("the HAR windows are not in this checkout")
    clients = {"a": task("har", HAR).load([1, 2, 3])}
    algorithm = {"name": "scaffold", "local_lr": 0.05, "batch_size": 32}
    fleet = make_fleet(clients, plan=Plan.open("har"), algorithm=algorithm, rounds=3)
    aggregator, device = fleet.aggregator(), fleet.device("a")
    assert [aggregator.end(), device.end()] == [0, 0]
    fleet.check_undisturbed()
    peaks = [settled["peak_mb"] for settled in device.reports("settled")]
    print("peak MB", peaks)
    assert len(peaks) == 3
    assert max(peaks) < 150
