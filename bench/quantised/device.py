"""A device process for each scheme: its peak of memory, what it holds, and what a step takes."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from bench.evidence.plans import ROOT, source
from bench.quantised.samples import SHAPE
from bench.quantised.steps import BATCH, RATE
from kellet.sdk.algorithms import Scaffold
from kellet.sdk.errors import FleetError
from kellet.sdk.plan import Plan
from kellet.sdk.plan.schemes import FLOAT32, Int8Layout, check_scheme, family
from kellet.server import Aggregator, FleetConfig
from kellet.server.brokers import open_broker

__all__ = ["TORCH", "Device", "State", "measure", "peak", "relative", "state_of"]

TORCH = "torch eager"
ROUNDS, STEPS = 3, 10
TURNS, SECONDS = 3, 1.0  # of each contender
_PATIENCE = 120.0  # s, for a device's rounds


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that a device holds in a round of SCAFFOLD, activations and blobs aside.

    ``weights``: y's trained int8 values and their scales, or all of y in float32; ``y`` all of
    y, ``start`` y_0, ``gradient``, ``shift`` in RAM; ``control`` c_i at rest, on its disk.
    """

    parameters: int
    weights: float  # bytes a weight, of those that a scheme holds in its own way
    y: int
    start: int
    gradient: int
    shift: int
    control: int


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan on one device. ``peak_mb``: VmHWM, in 10^6 bytes. ``microseconds``: of a step."""

    plan: str
    plan_id: str  # its first 16 hex digits
    scheme: str  # a family, or TORCH
    batch: int
    peak_mb: float
    microseconds: list[float]  # the median of each turn
    state: State | None  # of PyTorch's process it is not told


def measure(plan: str) -> list[Device]:
    """Measure a plan under each of its schemes, and in PyTorch. Nothing else should run."""
    path = source(plan)
    opened = Plan.open(path)
    schemes = [family(scheme) for scheme in opened.schemes]
    peaks = {scheme: peak(opened, scheme) for scheme in schemes}
    took: dict[str, list[float]] = {}
    for _ in range(TURNS):  # in turn, so that a disturbance meets all
        for scheme in schemes:
            found = _child("bench.quantised.steps", path, scheme, str(SECONDS))
            took.setdefault(scheme, []).append(found["microseconds"])
        found = _child("bench.quantised.eager", plan, str(SECONDS))
        took.setdefault(TORCH, []).append(found["microseconds"])
        peaks[TORCH] = found["peak_mb"]
    return [
        Device(
            plan=plan,
            plan_id=opened.hex_id[:16],
            scheme=scheme,
            batch=BATCH,
            peak_mb=round(peaks[scheme], 1),
            microseconds=[round(value, 2) for value in values],
            state=None if scheme == TORCH else state_of(opened, scheme),
        )
        for scheme, values in took.items()
    ]


def relative(device: Device, other: Device) -> float:
    """Return how many times ``other``'s step ``device``'s takes: the median over the turns."""
    return median(a / b for a, b in zip(device.microseconds, other.microseconds, strict=True))


def state_of(plan: Plan, scheme: str) -> State:
    """Return what a device holds, by the plan's layout."""
    common = {"parameters": plan.n_params, "control": 8 * plan.n_train}
    gradient = 4 * plan.n_train
    if check_scheme(scheme) == FLOAT32:
        return State(
            weights=4.0,
            y=4 * plan.n_params,
            start=4 * plan.n_update,
            gradient=gradient,
            shift=gradient,
            **common,
        )
    layout = Int8Layout.of(plan.manifest, scheme)
    trained = layout.n_weights + 4 * layout.n_scales
    frozen = sum(len_ + 4 * rows for len_, rows in map(_extent, layout.frozen))
    return State(
        weights=trained / layout.n_weights,
        y=trained + frozen + 4 * layout.n_rest,
        start=trained + 4 * layout.n_rest_update,
        gradient=gradient,
        shift=trained + 4 * layout.n_rest_train,
        **common,
    )


def _extent(held: Any) -> tuple[int, int]:
    return held.tensor.size, held.shape[0]


def peak(plan: Plan, scheme: str) -> float:
    """Return the peak of a ``kellet run`` that takes part in three rounds over MQTT, in MB."""
    classes = plan.manifest.labels.classes
    shape = ",".join(map(str, plan.manifest.input.shape))
    with (
        tempfile.TemporaryDirectory() as folder,
        open_broker("embedded", state_dir=folder) as broker,
    ):
        config = FleetConfig(
            algorithm=Scaffold(local_lr=RATE, local_steps=STEPS, batch_size=BATCH),
            rounds=ROUNDS,
            target=1,
            quorum=1,
            min_members=1,
            deadline=_PATIENCE,
            part_size=broker.part_size,
            admission=broker.admission_bytes,
            schemes=(scheme,),
        )
        aggregator = Aggregator(
            plan,
            broker=broker.url,
            state=Path(folder) / "server",
            config=config,
            separate_bulk=broker.separate_bulk,
        )
        serving = threading.Thread(target=aggregator.run)
        serving.start()
        try:
            return _device(folder, broker.url, broker.separate_bulk, scheme, f"{shape}/{classes}")
        finally:
            aggregator.stop()
            serving.join()
            aggregator.close()


def _device(folder: str, broker: str, separate_bulk: bool, scheme: str, shape: str) -> float:
    profile = Path(folder) / "bench.toml"
    text = _PROFILE.format(arch=platform.machine(), scheme=scheme.partition("/")[0])
    profile.write_text(text, encoding="utf-8")
    command = [
        *(sys.executable, "-P", "-m", "kellet.sdk.cli", "run", "device-1"),
        *("--broker", broker, "--state", f"{folder}/device", "--until-finished", "--json"),
        *("--data", "bench.quantised.samples:drawn", "--profile", str(profile)),
        *(["--separate-bulk"] if separate_bulk else []),
    ]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, SHAPE: shape},
        capture_output=True,
        text=True,
        timeout=ROUNDS * _PATIENCE,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    peaks = [line["peak_mb"] for line in lines if line.get("event") == "settled"]
    if done.returncode != 0 or len(peaks) < ROUNDS:
        raise FleetError(
            f"the device with {scheme} took part in {len(peaks)} of {ROUNDS} rounds",
            why=done.stderr.strip()[-500:] or done.stdout.strip()[-500:],
        )
    return float(max(peaks))


_PROFILE = """\
name = "bench"
arch = "{arch}"
triple = "{arch}-unknown-linux-gnu"
cpu = "generic"
memory_mb = 8000
memory_budget_mb = 4000
storage_budget_mb = 8000
threads = 1
schemes = ["{scheme}"]
shift = "f32"
max_message_bytes = 262144
uplink_codec = "f32"
algorithm = "scaffold"
"""


def _child(module: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise FleetError(f"{module} {' '.join(arguments)} failed", why=done.stderr.strip()[-500:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found
