"""A researcher's desk: a plan, and a module with pools."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.toy_plans import softmax_regression

MODULE = """
import numpy as np

def samples(n, seed):
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal((n, 6)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1)

def pool():
    return samples(240, 1)

def owned():
    return *samples(240, 1), np.repeat(["ada", "bob", "eve"], 80)

def test():
    return samples(120, 2)

def clients():
    return {name: samples(40, i) for i, name in enumerate("abc")}

def four():
    return samples(5, 1) * 2
"""


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "toy.kplan").write_bytes(softmax_regression(6, 3).raw)
    (folder / "mine.py").write_text(MODULE)
    return folder
