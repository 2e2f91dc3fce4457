"""One device's int8 round, every number of it worked in whole numbers and fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from quantised.by_hand import HEADROOM_TOP, UNIT, round_seed, rounded
from support.scripted import ScriptedInt8

from kellet import kernels
from kellet.sdk.algorithms import FedAvg, FedProx, Scaffold
from kellet.sdk.plan.manifest import layout
from kellet.sdk.protocol.vectors import Shapes, decode_vector
from kellet.sdk.trainer import Data, Outcome, train
from kellet.sdk.uplink import Uplink

TENSORS = layout([("w", (2, 3), "train", "mean"), ("b", (2,), "train", "mean")])
SHAPES = Shapes.of(TENSORS)
DATA = Data(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))

X = [HEADROOM_TOP, 32 / 64, -8 / 64, -HEADROOM_TOP, 1 / 64, 0.0, 0.25, -1.0]
G = [3 / 512, 5 / 512, -7 / 512, 1 / 512, 0.0, 2 / 512, 0.5, 0.125]
LR, STEPS = Fraction(1, 8), 2
COMMON: dict[str, Any] = {"local_lr": 0.125, "batch_size": 0, "local_steps": STEPS}
START, WALK = (round_seed(0, "a", 1, purpose) for purpose in ("start", "steps"))


def run(algorithm: FedAvg, scheme: str = "w8.row/1", **options: Any) -> Outcome:
    session = ScriptedInt8(TENSORS, scheme, lambda _step, _at: np.array(G, np.float32))
    return train(
        session,
        algorithm,
        DATA,
        x=np.array(X, np.float32),
        shapes=SHAPES,
        **{"seed": 0, "device": "a", "round_": 1} | options,
    )


def loaded() -> list[int]:
    """q_0: all of x but the two largest values is whole units, which no rounding moves."""
    return [rounded(Fraction(v) / UNIT, START, 0, j) for j, v in enumerate(X[:6])]


def walked(extra: Any) -> tuple[list[int], list[int]]:
    """q_0 and q_K: v = q - (lr/unit)*(g + extra), rounded by the hash of (seed, step, index)."""
    start = loaded()
    q = list(start)
    for step in range(STEPS):
        moves = [(LR / UNIT) * (Fraction(G[j]) + extra(j, q[j], start[j])) for j in range(6)]
        q = [rounded(q[j] - moves[j], WALK, step, j) for j in range(6)]
        for row in (q[:3], q[3:]):
            assert 57 <= max(map(abs, row)) <= 127  # so that the rows keep their unit
    return start, q


def exact(values: Any) -> list[Fraction]:
    return [Fraction(float(v)) for v in values]


def test_the_start_is_rounded_by_the_hash() -> None:
    start = loaded()
    assert start[1:3] == [32, -8]
    assert start[4:] == [1, 0]
    assert {abs(start[0]), abs(start[3])} <= {117, 118}  # of 117.59
    outcome = run(FedAvg(local_lr=2**-149, batch_size=0, local_steps=1))
    assert exact(outcome.delta_y[:]) == [0] * 8  # against y_0, not against x


def test_fedavg() -> None:
    start, end = walked(lambda _j, _q, _start: 0)
    outcome = run(FedAvg(**COMMON))
    bias = [-STEPS * LR * Fraction(g) for g in G[6:]]
    assert (
        exact(outcome.delta_y[:])
        == [UNIT * (b - a) for a, b in zip(start, end, strict=True)] + bias
    )
    assert (outcome.steps, outcome.rate_sum, outcome.scheme) == (2, 0.25, "w8.row/1")
    assert end != start


def test_fedprox() -> None:
    """The pull towards y_0 is mu*(q - q_0) units."""
    mu = Fraction(1, 2)
    start, end = walked(lambda _j, q, q_0: mu * UNIT * (q - q_0))
    outcome = run(FedProx(mu=0.5, **COMMON))
    first = [-LR * Fraction(g) for g in G[6:]]
    bias = [v - LR * (Fraction(g) + mu * v) for v, g in zip(first, G[6:], strict=True)]
    assert (
        exact(outcome.delta_y[:])
        == [UNIT * (b - a) for a, b in zip(start, end, strict=True)] + bias
    )
    # The penalty is that of y before the second step: half a mu of its squared distance.
    rows = [
        rounded(q - (LR / UNIT) * Fraction(g), WALK, 0, j) - q
        for j, (q, g) in enumerate(zip(start, G[:6], strict=True))
    ]
    squares = sum((UNIT * move) ** 2 for move in rows) + sum(v**2 for v in first)
    assert outcome.objective - outcome.loss == pytest.approx(float(mu * squares / 2 / STEPS))


def test_fedprox_implicit_is_the_explicit_step_at_a_lower_rate() -> None:
    mu, lr = 4.0, 0.125  # lr/(1 + lr*mu) = 1/12
    outcome = run(FedProx(mu=mu, implicit=True, **COMMON))
    lower = run(FedProx(mu=mu, **COMMON | {"local_lr": lr / (1 + lr * mu)}))
    assert outcome.delta_y[:6].tolist() == lower.delta_y[:6].tolist()
    assert outcome.rate_sum == 0.25


# d = c - c_i in units of 2^-12: whole but for two, which Q(d) rounds to -40 and (a tie) to 10.
D = [127.0, -40.25, 10.5, 0.0, 64.0, -127.0]
Q = [127, -40, 10, 0, 64, -127]
TINY = Fraction(1, 4096)
BIAS_D = [0.25, -0.5]


@pytest.mark.parametrize("damping", [1.0, 0.125])
@pytest.mark.parametrize("mine", [0.0, 0.75])
def test_scaffold(damping: float, mine: float) -> None:
    """Steps along g + Q(d); then A*(Q(d) - d) is added, and delta_c follows from that."""
    start, end = walked(lambda j, _q, _start: Q[j] * TINY)
    c_i = [Fraction(mine)] * 8
    d = [Fraction(v) * TINY for v in D] + [Fraction(v) for v in BIAS_D]
    c = [a + b for a, b in zip(d, c_i, strict=True)]
    outcome = run(
        Scaffold(control_damping=damping, **COMMON),
        c=np.array([float(v) for v in c], np.float32),
        c_i=np.array([int(v * 2**48) for v in c_i]),
    )
    rate_sum = STEPS * LR
    weights = [UNIT * (end[j] - start[j]) + rate_sum * (Q[j] * TINY - d[j]) for j in range(6)]
    bias = [-rate_sum * (Fraction(G[j]) + d[j]) for j in (6, 7)]
    assert exact(outcome.delta_y[:]) == weights + bias
    error = [rate_sum * (Q[j] * TINY - d[j]) for j in range(6)]
    assert [bool(e) for e in error] == [False, True, True, False, False, False]

    assert outcome.delta_c is not None
    wanted = [
        -Fraction(damping) * (c[j] + v / rate_sum) * 2**48 for j, v in enumerate(weights + bias)
    ]
    assert outcome.delta_c[:].tolist() == wanted  # whole steps of the grid, each of them
    assert outcome.delta_c_sent is None


def test_delta_c_follows_what_arrives_of_delta_y() -> None:
    c = np.array([*D, 1024.0, -2048.0], np.float32) / np.float32(4096)
    outcome = run(
        Scaffold(**COMMON),
        c=c,
        c_i=np.zeros(8, np.int64),
        uplink=Uplink(delta_y="q8", delta_c="derived"),
    )
    arrived = decode_vector("q8", outcome.delta_y_sent, SHAPES.update, 8)
    assert outcome.delta_y[:].tolist() == arrived.tolist()
    plain = run(Scaffold(**COMMON), c=c, c_i=np.zeros(8, np.int64))
    assert outcome.delta_y[:].tolist() != plain.delta_y[:].tolist()
    wanted = [
        round(-(a + b / Fraction(1, 4)) * 2**48)
        for a, b in zip(exact(c), exact(arrived), strict=True)
    ]
    assert outcome.delta_c is not None
    assert outcome.delta_c[:].tolist() == wanted


@pytest.mark.parametrize("codec", ["q8", "topk"])
def test_an_explicit_delta_c_is_what_its_bytes_decode_to(codec: Any) -> None:
    c = np.array([*D, 1024.0, -2048.0], np.float32) / np.float32(4096)
    outcome = run(
        Scaffold(delta_c=codec, **COMMON),
        c=c,
        c_i=np.zeros(8, np.int64),
        uplink=Uplink(delta_c=codec, share=0.25),
    )
    assert outcome.delta_c is not None
    assert outcome.delta_c_sent is not None
    arrived = decode_vector(codec, outcome.delta_c_sent, SHAPES.train, 8)
    assert outcome.delta_c[:].tolist() == kernels.to_grid(arrived).tolist()
    assert np.count_nonzero(arrived) == (2 if codec == "topk" else np.count_nonzero(arrived))


def test_clipping_is_of_the_whole_gradient_before_the_correction() -> None:
    """|g|^2 = 88/512^2 + .265625: a limit of half the norm halves weights' and bias' gradient."""
    norm = float(np.linalg.norm(np.array(G)))
    outcome = run(FedAvg(clip=norm / 2, **COMMON))
    factor = Fraction(float(np.float32(np.float64(np.float32(norm / 2)) / norm)))
    assert float(factor) == pytest.approx(0.5, rel=1e-6)
    bias = [float(-STEPS * LR * factor * Fraction(g)) for g in G[6:]]
    assert outcome.delta_y[6:].tolist() == pytest.approx(bias, rel=1e-6)
    assert (
        run(FedAvg(clip=norm * 1.001, **COMMON)).delta_y[:].tolist()
        == run(FedAvg(**COMMON)).delta_y[:].tolist()
    )


def test_weight_decay_is_part_of_the_gradient() -> None:
    """decay*q units against each weight: 1/8 of 118 units, at 8 units a gradient, is a walk."""
    start, end = walked(lambda _j, q, _start: Fraction(1, 8) * q * UNIT)
    outcome = run(FedAvg(weight_decay=0.125, **COMMON))
    weights = [UNIT * (b - a) for a, b in zip(start, end, strict=True)]
    assert exact(outcome.delta_y[:6]) == weights
