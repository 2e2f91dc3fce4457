"""A device's own model, out of its state directory, as a file that anyone can run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.toy_plans import softmax_regression

from kellet.sdk import cli
from kellet.sdk.blobs import BlobCache
from kellet.sdk.errors import StorageError
from kellet.sdk.personal.export import read_own
from kellet.sdk.store import Store

PLAN = softmax_regression(2, 3)
V = np.linspace(-1, 1, PLAN.n_update, dtype=np.float32)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    BlobCache(folder / "plans").put(PLAN.raw, keep=True)
    store = Store("a", folder / "device.db")
    store.personal.save(PLAN.id, b"b" * 32, 7, V)
    store.close()
    return folder


def test_it_is_the_model_that_was_trained_last(state: Path) -> None:
    own = read_own(state)
    assert (own.plan.id, own.round) == (PLAN.id, 7)
    assert np.array_equal(own.model, V)
    store = Store("a", state / "device.db")  # a device at work
    assert store.identity.incarnation == 2  # reading was no start
    store.personal.save(PLAN.id, b"c" * 32, 8, V + 1)
    assert read_own(state).round == 8
    store.close()


def test_the_command_writes_what_onnxruntime_runs(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.onnx"
    assert cli.run(["plan", "personal", str(state), "-o", str(file)]) == 0
    assert "trained   in round 7" in capsys.readouterr().out
    x = np.array([[1, 2], [-1, 0.5]], np.float32)
    (scores,) = onnxruntime.InferenceSession(file).run(None, {"batch": x})
    assert np.array_equal(scores, PLAN.evaluator().scores(V, x))
    assert cli.run(["plan", "personal", str(state), "-o", str(file)]) == 2
    assert "write over it with --force" in capsys.readouterr().err


def test_a_device_without_one(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no device's state"):
        read_own(tmp_path)
    Store("a", tmp_path / "device.db").close()
    with pytest.raises(StorageError, match="has no model of its own"):
        read_own(tmp_path)


def test_a_plan_that_is_gone(state: Path) -> None:
    for file in (state / "plans").iterdir():
        file.unlink()
    with pytest.raises(StorageError, match="is not in"):
        read_own(state)


def test_another_format(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kellet.sdk.personal.export.FORMAT", 9)
    with pytest.raises(StorageError, match="has format 3"):
        read_own(state)
