"""What a comparison came to, as it is kept in docs/evidence/peers.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import msgspec

from bench.peers.environments import python_of
from bench.peers.measure import SIDES
from bench.results import Spread, machine, today

__all__ = ["GOALS", "Compared", "Results", "Timed", "ratio", "read", "versions", "write"]

# By net: how many times the rounds a second of each peer, in its fastest form.
GOALS = {"mlp": {"flwr": 20.0, "pfl": 1.5}, "cnn": {"flwr": 1.0, "pfl": 1.0}}


class Timed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One side: ``seconds`` a round and until the first round's end, over the runs.

    ``rss`` and ``pss``: the median peak in bytes, of all processes. ``rounds`` of each run.
    """

    seconds: Spread
    first: Spread
    rss: int
    pss: int
    rounds: int


class Compared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One problem. ``apart``: how far each side's first model is from Kellet's, at most."""

    title: str
    net: str
    apart: dict[str, float]
    sides: dict[str, Timed]


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``load``: the machine's, averaged over the minute before the first run and the last."""

    date: str
    full: bool
    repeats: int
    load: tuple[float, float]
    machine: dict[str, str | int]
    versions: dict[str, str]
    problems: dict[str, Compared]


def ratio(compared: Compared, framework: str) -> float:
    """How many rounds Kellet does while a peer does one, each in its fastest form."""
    return _best(compared, framework) / _best(compared, "kellet")


def _best(compared: Compared, framework: str) -> float:
    return min(
        timed.seconds.median
        for name, timed in compared.sides.items()
        if SIDES[name].framework == framework
    )


def spread(values: list[float]) -> Spread:
    return Spread(min(values), median(values), max(values)).rounded()


def versions() -> dict[str, str]:
    """Of each side's own environment."""
    wanted = {"kellet": ("numpy", "onnxruntime"), "flwr": ("flwr", "ray", "torch", "numpy")}
    found = {"python": sys.version.split()[0]}
    for framework, names in {**wanted, "pfl": ("pfl", "torch", "numpy")}.items():
        python = sys.executable if framework == "kellet" else python_of(framework)
        code = "import sys; from importlib.metadata import version; "
        code += "print(*map(version, sys.argv[1:]))"
        done = subprocess.run(
            [python, "-c", code, *names], capture_output=True, text=True, check=True
        )
        found |= {
            f"{framework}'s {name}" if name != framework else name: value
            for name, value in zip(names, done.stdout.split(), strict=True)
        }
    return found


def read(path: Path) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(msgspec.to_builtins(results), indent=1) + "\n", encoding="utf-8")


def facts() -> tuple[dict[str, str | int], str]:
    """The machine and the day."""
    return machine(), today()
