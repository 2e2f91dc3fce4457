"""Error feedback where it heals, and where it is refused because it diverges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import Scaffold
from kellet.sdk.errors import UsageError
from kellet.sdk.protocol.vectors import decode_vector
from kellet.sdk.uplink import Uplink, code
from kellet.server import simulate

F64 = NDArray[np.float64]


def distances(coded: str, *, feedback: bool, rounds: int = 400) -> list[float]:
    """SCAFFOLD in plain NumPy: ||x - optimum|| round by round, until it is lost.

    Four clients, f_i = sum of a_i/2 (x - b_i)^2 in 32 dimensions, 5 steps of .05; of the vector
    that is ``coded`` the largest eighth arrives: "delta_c", or "delta_y", from which the
    other is derived ("derived") or beside which it travels exactly ("explicit").
    """
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.5, 1.5, (4, 32)), rng.normal(size=(4, 32))
    optimum = (a * b).sum(0) / a.sum(0)
    x, c_i, left = np.zeros(32), np.zeros((4, 32)), np.zeros((4, 32))
    rate, steps = 0.05, 5

    def through(i: int, v: F64) -> F64:
        if feedback:
            v = v + left[i]
        sent = np.zeros(32)
        largest = np.argsort(-np.abs(v))[:4]
        sent[largest] = v[largest]
        if feedback:
            left[i] = v - sent
        return sent

    seen = []
    for _ in range(rounds):
        c, moves = c_i.mean(0), []
        for i in range(4):
            y = x.copy()
            for _step in range(steps):
                y -= rate * (a[i] * (y - b[i]) - c_i[i] + c)
            delta_y = y - x
            if coded == "delta_c":
                delta_c = through(i, -c - delta_y / (steps * rate))
            else:
                arrived = through(i, delta_y)
                base = arrived if coded == "derived" else delta_y
                delta_c = -c - base / (steps * rate)
                delta_y = arrived
            moves.append(delta_y)
            c_i[i] += delta_c
        x = x + np.mean(moves, axis=0)
        seen.append(float(np.linalg.norm(x - optimum)))
        if not seen[-1] < 1e9:
            break
    return seen


@pytest.mark.parametrize("coded", ["delta_c", "derived"])
def test_feedback_diverges_where_c_i_is_the_memory_already(coded: str) -> None:
    without = distances(coded, feedback=False)
    assert without[-1] < 1e-6 * without[0]
    with_it = distances(coded, feedback=True)
    assert with_it[-1] >= 1e9


def test_feedback_on_delta_y_beside_an_explicit_delta_c_converges() -> None:
    seen = distances("explicit", feedback=True)
    assert seen[-1] < 1e-9 * seen[0]


def test_the_device_refuses_it_where_it_diverges() -> None:
    with pytest.raises(UsageError, match="from which delta_c is derived"):
        Uplink(delta_y="q8", delta_c="derived", feedback=True)
    assert Uplink(delta_y="q8", delta_c="f32", feedback=True).feedback


def test_the_fleet_refuses_it_where_it_diverges() -> None:
    clients = {"a": (np.zeros((4, 6)), np.zeros(4, np.int64))}
    with pytest.raises(UsageError, match="feedback"):
        simulate(softmax_regression(6, 3), clients, Scaffold(), uplink="q8", feedback=True)


@pytest.mark.parametrize("codec", ["f32", "q8", "topk"])
@pytest.mark.parametrize("borrowed", [False, True])
def test_the_residual_is_what_did_not_arrive(codec: Any, borrowed: bool) -> None:
    rng = np.random.default_rng(1)
    layout = np.array([4, 100, 1, 30])
    v, before = (rng.standard_normal((2, 430)) * 0.01).astype(np.float32)
    given = v.copy()
    coded = code(
        codec,
        given,
        layout,
        borrowed=borrowed,
        seed=3,
        share=0.1,
        feedback=True,
        residual=before,
    )
    arrived = decode_vector(codec, coded.sent, layout, 430)
    assert coded.decoded[:].tobytes() == arrived.tobytes()
    assert coded.residual is not None
    assert coded.residual.tobytes() == ((v + before) - arrived).tobytes()
    assert not borrowed or not np.shares_memory(coded.residual, given)
    assert bool(np.any(coded.residual)) == (codec != "f32")
    for part in (slice(0, 1), slice(99, 101), slice(350, 430), slice(7, 333), slice(5, 5)):
        assert coded.decoded[part].tobytes() == arrived[part].tobytes()


def test_without_feedback_nothing_is_kept() -> None:
    v = np.linspace(-1, 1, 50, dtype=np.float32)
    coded = code("q8", v.copy(), np.array([1, 50]), seed=0)
    assert coded.residual is None
