"""What a device's store keeps of personal models, and stores of an older format."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from kellet.sdk.errors import StorageError
from kellet.sdk.store import Store

PLAN, OTHER, THIRD = bytes(32), b"o" * 32, b"t" * 32
BASE = b"b" * 32
LARGE = 70_000  # floats: beyond the size up to which a blob is written at once


def held(store: Store, plan: bytes = PLAN) -> np.ndarray:
    found = store.personal.find(plan)
    assert found is not None
    out = np.full(found.n, np.nan, np.float32)
    found.read_into(out)
    return out


@pytest.mark.parametrize("n", [3, LARGE])
def test_a_model_is_there_at_the_next_start(n: int, tmp_path: Path) -> None:
    v = np.arange(n, dtype=np.float32) / 8
    store = Store("a", tmp_path / "device.db")
    assert store.personal.find(PLAN) is None
    store.personal.save(PLAN, BASE, 7, v)
    store.close()
    store = Store("a", tmp_path / "device.db")
    found = store.personal.find(PLAN)
    assert found is not None
    assert (found.n, found.base, found.round) == (n, BASE, 7)
    assert np.array_equal(held(store), v)
    store.personal.save(PLAN, BASE, 8, v + 1)
    assert np.array_equal(held(store), v + 1)
    assert store.personal.plans() == [PLAN]
    store.close()


def test_the_models_of_the_two_plans_trained_last_are_kept() -> None:
    store = Store("a")
    for plan, value in ((PLAN, 1), (OTHER, 2), (PLAN, 3), (THIRD, 4)):
        store.personal.save(plan, BASE, 1, np.full(2, value, np.float32))
    assert store.personal.plans() == [THIRD, PLAN]
    assert held(store).tolist() == [3, 3]
    assert store.personal.find(OTHER) is None


def test_it_is_the_owners_whatever_becomes_of_the_membership() -> None:
    store = Store("a")
    store.personal.save(PLAN, BASE, 1, np.ones(2, np.float32))
    store.new_epoch(5)
    store.enrol_anew()
    assert held(store).tolist() == [1, 1]


def test_an_older_store_opens_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    store = Store("a", path)
    store.adopt(3, np.array([5, -7]))
    nonce = store.identity.nonce
    store.close()
    with sqlite3.connect(path) as database:
        database.execute("drop table personal")
        database.execute("pragma user_version = 2")
    database.close()
    store = Store("a", path)
    assert (store.identity.nonce, store.identity.incarnation) == (nonce, 2)
    assert store.control(2).tolist() == [5, -7]
    store.personal.save(PLAN, BASE, 1, np.ones(2, np.float32))
    store.close()
    with sqlite3.connect(path) as database:
        assert database.execute("pragma user_version").fetchone() == (3,)
    database.close()


@pytest.mark.parametrize("version", [1, 4])
def test_another_format_is_refused(version: int, tmp_path: Path) -> None:
    path = tmp_path / "device.db"
    Store("a", path).close()
    with sqlite3.connect(path) as database:
        database.execute(f"pragma user_version = {version}")
    database.close()
    with pytest.raises(StorageError, match=f"has format {version}"):
        Store("a", path)
