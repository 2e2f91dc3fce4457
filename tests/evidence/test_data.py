"""The data that the evidence rests on is what its script makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "data"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_mnist", FOLDER / "mnist.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_mnist_is_all_there(script):
    with np.load(FOLDER / "mnist_14.npz", allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    assert [array.shape for array in arrays.values()] == [
        (60000, 14, 14), (60000,), (10000, 14, 14), (10000,),
    ]  # fmt: skip
    assert script.digest(arrays) == script.DIGEST
    assert np.bincount(arrays["y_test"]).tolist() == [
        980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009,
    ]  # fmt: skip


def test_a_pixel_is_the_mean_of_four_and_a_half_goes_up(script):
    image = np.array([[[255, 255, 0, 1], [255, 255, 1, 0], [1, 0, 9, 9], [0, 0, 9, 10]]], np.uint8)
    assert script.halve(image).tolist() == [[[255, 1], [0, 9]]]


def test_another_source_is_refused(script, tmp_path):
    blank = np.zeros((2, 28, 28), np.uint8)
    labels = np.zeros(2, np.uint8)
    np.savez(tmp_path / "a.npz", x_train=blank, y_train=labels, x_test=blank, y_test=labels)
    with pytest.raises(SystemExit, match="not MNIST as it was"):
        script.main(str(tmp_path / "a.npz"), str(tmp_path / "b.npz"))
    assert not (tmp_path / "b.npz").exists()
