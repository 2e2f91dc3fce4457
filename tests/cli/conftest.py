"""A fleet as a user starts it: a plan and data of his own, and ``kellet server``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command import Running
from support.toy_plans import softmax_regression

FEATURES, CLASSES = 6, 3

MODULE = """
import numpy as np

def load(device, rows=40):
    numbers = np.random.default_rng(sum(map(ord, device)))
    x = numbers.standard_normal((rows, 6)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1)

def clients():
    return {name: load(name) for name in ("a", "b", "c")}

def test():
    return load("test", 200)

def labels_from_one(device):
    x, y = load(device)
    return x, y + 1

def nan_in_row_3(device):
    x, y = load(device)
    x[3, 4] = np.nan
    return x, y

def wrong_shape(device):
    x, y = load(device)
    return x[:, :5], y

def empty(device):
    x, y = load(device)
    return x[:0], y[:0]

def text(device):
    return [["a"] * 6], [0]

def leaves(device=None):
    raise SystemExit(0)

def raises(device):
    raise OSError("the sensor is unplugged")

def one(device):
    return np.zeros((3, 6), np.float32)
"""


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory where the user works: ``toy.kplan`` and ``mine.py``."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "toy.kplan").write_bytes(softmax_regression(FEATURES, CLASSES).raw)
    (folder / "mine.py").write_text(MODULE)
    (folder / "nobody").write_text("# DEVICE:PASSWORD\n\n")
    return folder


@pytest.fixture(scope="session")
def serving(desk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker where an aggregator waits for any device."""
    state = tmp_path_factory.mktemp("serving")
    options = ("--rounds", 1000, "--target", 50, "--deadline", 600)
    with Running("server", "toy.kplan", "--state", state, *options, cwd=desk) as server:
        yield server.wait_for("serving")["broker"]
