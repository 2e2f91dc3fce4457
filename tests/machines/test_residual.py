"""The residual of error feedback moves with the receipt, like c_i."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kellet.sdk.store import Pending, Store

PLAN, OTHER = b"p" * 32, b"q" * 32
FIRST, SECOND = np.array([0.5, -1.0], np.float32), np.array([0.25, 2.0], np.float32)


def pending(seq: int, **changes: Any) -> Pending:
    fields: dict[str, Any] = {
        "uid": bytes([seq]) * 16,
        "seq": seq,
        "round": seq,
        "epoch": 1,
        "base": bytes([seq]) * 32,
        "sha256": bytes(32),
        "body": b"body",
        "c_i_next": None,
    }
    return Pending(**(fields | changes))


def held(store: Store, plan: bytes = PLAN) -> list[float] | None:
    raw = store.residual(plan)
    return None if raw is None else np.frombuffer(raw, "<f4").tolist()


def train(store: Store, seq: int, residual: Any = FIRST, plan: bytes = PLAN) -> bytes:
    work = pending(seq)
    store.save_pending(work, plan=plan, residual=residual)
    return work.uid


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store("a", tmp_path / "device.db")


def test_it_waits_for_the_receipt(store: Store, tmp_path: Path) -> None:
    uid = train(store, 1)
    assert held(store) is None
    again = Store("a", tmp_path / "device.db")  # killed in between
    assert held(again) is None
    assert again.settle(uid, counted=True, reason="counted")
    assert held(again) == [0.5, -1.0]
    assert not again.settle(uid, counted=True, reason="counted")
    assert held(again) == [0.5, -1.0]


def test_what_was_not_counted_leaves_the_old_one(store: Store) -> None:
    store.settle(train(store, 1), counted=True, reason="counted")
    store.settle(train(store, 2, SECOND), counted=False, reason="late")
    assert held(store) == [0.5, -1.0]
    store.settle(train(store, 3, SECOND), counted=True, reason="counted")
    assert held(store) == [0.25, 2.0]


def test_a_round_without_feedback_leaves_it(store: Store) -> None:
    store.settle(train(store, 1), counted=True, reason="counted")
    store.settle(train(store, 2, None), counted=True, reason="counted")
    assert held(store) == [0.5, -1.0]


def test_a_new_plan_begins_without(store: Store) -> None:
    store.settle(train(store, 1), counted=True, reason="counted")
    assert held(store, OTHER) is None
    store.settle(train(store, 2, SECOND, OTHER), counted=False, reason="late")
    assert held(store) == [0.5, -1.0]  # nothing of the other plan was counted: the old goes on
    store.settle(train(store, 3, SECOND, OTHER), counted=True, reason="counted")
    assert held(store, OTHER) == [0.25, 2.0]
    assert held(store) is None


@pytest.mark.parametrize("how", ["epoch", "anew"])
def test_a_new_epoch_and_enrolling_anew_begin_without(store: Store, how: str) -> None:
    store.settle(train(store, 1), counted=True, reason="counted")
    uid = train(store, 2, SECOND)
    if how == "epoch":
        store.new_epoch(2)
    else:
        store.enrol_anew()
    assert held(store) is None
    assert not store.settle(uid, counted=True, reason="counted")
    assert held(store) is None
    store.settle(train(store, 3, SECOND), counted=True, reason="counted")
    assert held(store) == [0.25, 2.0]
