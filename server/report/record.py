"""What a report is made of: one run, as plain data that is kept beside it."""

from __future__ import annotations

import datetime
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from kellet.sdk.durable import write_file
from kellet.sdk.errors import StorageError

__all__ = ["RUN_FILE", "Curve", "Event", "Round", "Run", "load_run", "now", "save_run", "versions"]

RUN_FILE = "run.json"
FORMAT = 1


class Round(Struct, frozen=True, kw_only=True):
    """One round of one algorithm; bytes are of this round alone.

    ``accuracy`` and ``loss`` are of the new model on the test set, ``train_loss`` is the
    data's loss during local steps, ``drift`` the mean of ||y - x|| over the devices counted.
    ``closed_at``: seconds after the run's start, where there was a clock.
    """

    round: int
    state: str
    counted: list[str]
    asked: list[str]
    train_loss: float | None = None
    drift: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    seconds: float = 0.0
    closed_at: float | None = None

    @property
    def closed(self) -> bool:
        return self.state == "closed"


class Curve(Struct, frozen=True, kw_only=True):
    """An algorithm over the rounds. ``source``: a ``live`` fleet, or ``simulated``."""

    algorithm: str
    source: Literal["live", "simulated"]
    rounds: list[Round]
    hyperparameters: dict[str, Any] = {}
    digest: str = ""
    control_gap: int | None = None


class Event(Struct, frozen=True):
    """What happened to a device, ``at`` seconds after the run's start.

    ``kind``: started, killed, restarted, trained, counted, refused or stopped.
    """

    at: float
    device: str
    kind: str
    round: int = 0


class Run(Struct, frozen=True, kw_only=True):
    """All that a report tells of a run. ``curves`` has the main one first."""

    format: int = FORMAT
    title: str
    kind: Literal["demo", "simulation", "server"]
    algorithm: str
    created: str
    curves: list[Curve]
    devices: list[str]
    summary: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, str]
    events: list[Event] = []
    test: str = ""


def save_run(folder: Path, run: Run) -> Path:
    """Keep ``run`` in ``folder``; the file. Raises ``StorageError``."""
    path = folder / RUN_FILE
    write_file(path, msgspec.json.format(msgspec.json.encode(run), indent=1))
    return path


def load_run(path: Path) -> Run:
    """Read what ``save_run`` wrote. Raises ``StorageError``."""
    try:
        run = msgspec.json.decode(path.read_bytes(), type=Run)
    except (OSError, msgspec.DecodeError) as error:
        raise StorageError(
            f"{path} cannot be read", why=str(error), repair="run the demo or simulation again"
        ) from None
    if run.format != FORMAT:
        raise StorageError(
            f"{path} has format {run.format}",
            why=f"this version of Kellet reads {FORMAT}",
            repair="use the version of Kellet that wrote it, or run again",
        )
    return run


def now() -> str:
    """This moment, for people."""
    return datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")


def versions() -> dict[str, str]:
    """What a run's numbers rest on, by name."""
    from kellet.kernels import backend

    found = {"kellet": metadata.version("kellet"), "kernels": backend()}
    found |= {name: metadata.version(name) for name in ("onnxruntime", "numpy", "paho-mqtt")}
    found["python"] = platform.python_version()
    found["machine"] = f"{platform.machine()}, {platform.system()} {platform.release()}"
    return found
