"""What a round costs on the link: bodies by hand, and whole simulations by their own count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.plan import Plan
from kellet.sdk.protocol.vectors import Shapes, encode_vector, vector_limit
from kellet.server import simulate

WISDM, HAR = Plan.open("wisdm"), Plan.open("har")


@pytest.mark.parametrize("plan", [WISDM, HAR], ids=["wisdm", "har"])
def test_int8_rows_take_a_quarter(plan: Plan) -> None:
    shapes = Shapes.of(plan.manifest.tensors)
    n, rows = shapes.n_update, int(shapes.update[::2].sum())
    size = vector_limit("q8", n, shapes.update)
    assert size == n + 4 * rows
    assert 0.25 < size / (4 * n) < 0.3
    v = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    assert len(encode_vector("q8", v, shapes.update, seed=1)) == size
    # 5 % of the elements, eight bytes each instead of four: a tenth.
    assert vector_limit("topk", n, shapes.update, 0.05) / (4 * n) == pytest.approx(0.1, abs=1e-3)


def traffic(algorithm: FedAvg, **how: Any) -> tuple[int, int]:
    """(up, down) bytes of three rounds of four devices on WISDM's plan."""
    rng = np.random.default_rng(1)
    clients = {}
    for i in range(4):
        x = rng.standard_normal((40, *WISDM.manifest.input.shape)).astype(np.float32)
        y = np.arange(40) % (WISDM.manifest.labels.classes or 1)
        clients[f"c{i}"] = (x, y)
    last = simulate(WISDM, clients, algorithm, rounds=3, **how).rounds[-1]
    assert len(last.counted) == 4
    return last.uplink_bytes, last.downlink_bytes


def test_what_a_whole_run_sends() -> None:
    """Three rounds, four devices; requests, headers and parts' headers counted."""
    fedavg = traffic(FedAvg(local_steps=2))
    derived = traffic(Scaffold(local_steps=2))
    explicit = traffic(Scaffold(local_steps=2, delta_c="f32"))
    rows = traffic(FedAvg(local_steps=2), uplink="q8", downlink="q8")
    both = traffic(Scaffold(local_steps=2), uplink="q8", downlink="q8")
    body = 12 * 4 * WISDM.n_update
    assert fedavg[0] > body
    # A derived delta_c costs no bytes.
    assert abs(derived[0] / fedavg[0] - 1) < 0.01
    assert explicit[0] - derived[0] == pytest.approx(12 * 4 * WISDM.n_train, rel=0.01)
    # What is not the vectors' is the same within 1 %.
    shapes = Shapes.of(WISDM.manifest.tensors)
    small = 12 * vector_limit("q8", shapes.n_update, shapes.update)
    assert rows[0] - small == pytest.approx(fedavg[0] - body, rel=0.05)
    assert rows[0] / fedavg[0] < 0.35
    assert 0 < both[0] - rows[0] < 12 * 120  # SCAFFOLD asks for one blob more a round
    # Down: the model (and the control) to each of four devices in each of three rounds.
    assert fedavg[1] - rows[1] == pytest.approx(body - small, rel=0.05)
    assert derived[1] - both[1] == pytest.approx(2 * (body - small), rel=0.05)
