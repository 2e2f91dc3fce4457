"""Run one side in its environment, and watch the memory of all its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.peers.environments import python_of
from bench.peers.problems import Written
from bench.peers.sides.job import Job
from kellet.sdk.errors import KelletError

__all__ = ["SIDES", "Ran", "Side", "run"]

_CODE = Path(__file__).parent / "sides"
_EVERY = 0.2  # s between two looks at the memory
_PATIENCE = 900.0  # s for one run, on a busy machine


@dataclass(frozen=True)
class Side:
    """A framework, and how many processes and threads it may use.

    ``nets``: where it is tried. Threads only slow down a net whose step takes microseconds.
    """

    framework: str
    workers: int
    threads: int = 1
    nets: tuple[str, ...] = ("mlp", "cnn")


SIDES = {
    "kellet": Side("kellet", 1),
    "kellet, 2 processes": Side("kellet", 2),
    "pfl": Side("pfl", 1),
    "pfl, 2 threads": Side("pfl", 1, threads=2, nets=("cnn",)),
    "flwr": Side("flwr", 2),
}


@dataclass(frozen=True)
class Ran:
    """``ends``: of the rounds, in seconds from the start; the model, by tensor.

    ``rss`` and ``pss``: the peak, in bytes, over all processes: each with all its pages, and
    each page shared out among those that have it.
    """

    ends: list[float]
    model: Mapping[str, Any]
    rss: int
    pss: int


def run(name: str, problem: Written, *, rounds: int, whole: bool = False, seed: int = 0) -> Ran:
    """Let a side train. ``whole``: all clients, in two steps on all of their samples.

    Raises ``KelletError`` with its last words where it fails.
    """
    side, setting = SIDES[name], problem.setting
    with tempfile.TemporaryDirectory(prefix="kellet-peers-") as folder:
        out = Path(folder) / "model.npz"
        job = Path(folder) / "job.json"
        Job(
            data=str(problem.data),
            net=setting.net,
            plan=str(problem.plan),
            rounds=rounds,
            cohort=problem.clients if whole else setting.cohort,
            steps=2 if whole else setting.steps,
            batch=0 if whole else setting.batch,
            lr=setting.lr,
            seed=seed,
            workers=side.workers,
            threads=side.threads,
            out=str(out),
        ).write(job)
        rss, pss = _watched(side, job, Path(folder))
        with np.load(out, allow_pickle=False) as file:
            model = dict(file)
        return Ran(json.loads(out.with_suffix(".json").read_text()), model, rss, pss)


def _watched(side: Side, job: Path, folder: Path) -> tuple[int, int]:
    python = sys.executable if side.framework == "kellet" else python_of(side.framework)
    log = folder / "log"
    with log.open("w") as said:
        process = psutil.Popen(
            [python, _CODE / f"with_{side.framework}.py", job],
            cwd=folder,
            env=_environment(side),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            peaks = _peaks(process)
        finally:
            for one in _family(process):
                one.kill()
            process.wait()
    if process.returncode != 0:
        raise KelletError(
            f"{side.framework} failed with exit code {process.returncode}",
            why=" / ".join(log.read_text().strip().splitlines()[-3:]),
        )
    return peaks


def _environment(side: Side) -> dict[str, str]:
    """One thread a library, unless a side says otherwise; and nothing is told to anybody."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(side.threads))
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return {**os.environ, **threads, **quiet, "PYTHONPATH": str(_CODE)}


def _peaks(process: psutil.Popen) -> tuple[int, int]:
    rss = pss = 0
    end = time.monotonic() + _PATIENCE
    while process.poll() is None:
        if time.monotonic() > end:
            raise KelletError(f"a run takes longer than {_PATIENCE:.0f} s", why="see its log")
        totals = [0, 0]
        for one in _family(process):
            try:
                memory = one.memory_full_info()
            except psutil.Error:  # it has just ended
                continue
            totals[0] += memory.rss
            totals[1] += memory.pss
        rss, pss = max(rss, totals[0]), max(pss, totals[1])
        time.sleep(_EVERY)
    return rss, pss


def _family(process: psutil.Popen) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []
