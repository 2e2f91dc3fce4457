"""What every side is asked to do, and how it says that it has done it. NumPy alone."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Job:
    """``data``: an .npz with each client's samples and the model to begin with (see ``Problem``).

    ``net`` names the model, ``plan`` is the file that Kellet takes for it. ``steps`` of ``batch``
    samples each (0: all of them) at rate ``lr``; ``cohort`` clients a round, drawn by ``seed``.
    ``workers``: processes that train, ``threads``: of each. ``out``: where the model goes.
    """

    data: str
    net: str
    plan: str
    rounds: int
    cohort: int
    steps: int
    batch: int
    lr: float
    seed: int
    workers: int
    threads: int
    out: str

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: str) -> Job:
        return cls(**json.loads(Path(path).read_text()))


class Problem:
    """Clients' samples, and the tensors of the first model by their names in torch."""

    def __init__(self, path: str) -> None:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        self._x, self._y = arrays["x"], arrays["y"]
        self._starts = [0, *arrays["ends"].tolist()]
        self.initial: dict[str, Arrays] = {
            name.removeprefix("initial/"): value
            for name, value in arrays.items()
            if name.startswith("initial/")
        }

    def __len__(self) -> int:
        return len(self._starts) - 1

    def client(self, number: int) -> tuple[Arrays, Arrays]:
        """x float32 [n, *input] and y int64 [n]."""
        mine = slice(self._starts[number], self._starts[number + 1])
        return self._x[mine], self._y[mine]


class Clock:
    """When each round ended, in seconds from the start of the process."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def round_ended(self) -> None:
        with open("/proc/self/stat") as file:
            began = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        self.ends.append(time.clock_gettime(time.CLOCK_BOOTTIME) - began)


def done(job: Job, clock: Clock, model: dict[str, Arrays]) -> None:
    """Write the model, and say when the rounds ended."""
    np.savez(job.out, allow_pickle=False, **model)
    Path(job.out).with_suffix(".json").write_text(json.dumps(clock.ends))
