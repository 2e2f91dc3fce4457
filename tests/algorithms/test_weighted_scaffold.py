"""SCAFFOLD weighted by samples: C = sum w_i c_i, c = C / sum w_i, w_i frozen for the epoch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from algorithms.local import control, rows
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss, quadratic

from kellet.sdk.algorithms import FedAvg, Scaffold, ScaffoldM
from kellet.server import History, simulate

STEP = 2**48  # of the grid, in 1
WEIGHTED = Scaffold(weighting="samples")


def uneven(algorithm: FedAvg, **options: Any) -> History:
    """1/2 (w - b)^2 with two samples at b = 1 and six at b = -1; of all samples it is -1/2."""
    clients = {"a": rows(*[[1, 1]] * 2), "b": rows(*[[1, -1]] * 6)}
    return simulate(quadratic(initial=4.0), clients, algorithm, **{"rounds": 1} | options)


@pytest.mark.parametrize("kind", [Scaffold, ScaffoldM])
def test_the_optimum_is_that_of_all_samples(kind: type[Scaffold]) -> None:
    local: Any = {"local_lr": 0.1, "local_steps": 5, "batch_size": 0}
    weighted = uneven(kind(weighting="samples", **local), rounds=60, check="event")
    assert weighted.model[0] == pytest.approx(-0.5, abs=1e-4)
    assert weighted.control_gap == 0
    assert [weighted.c_i["a"][0], weighted.c_i["b"][0]] == pytest.approx([-1.5, 0.5], abs=1e-3)
    assert weighted.c[0] == pytest.approx(0, abs=1e-3)
    uniform = uneven(kind(**local), rounds=60)
    assert uniform.model[0] == pytest.approx(0, abs=1e-4)


def test_c_is_the_weighted_mean() -> None:
    """One step of rate 1/2 from 4: gradients 3 and 5, c = (2*3 + 6*5)/8."""
    history = uneven(Scaffold(weighting="samples", local_lr=0.5, local_steps=1, batch_size=0))
    assert (history.c_i["a"][0], history.c_i["b"][0], history.c[0]) == (3, 5, 4.5)
    assert history.model[0] == 4 - 0.5 * 4.5


def test_equal_weights_are_uniform_weights_to_the_bit() -> None:
    clients = {"a": rows([1, 1], [2, 3]), "b": rows([1, -1], [3, 0.5])}
    weighted, uniform = (
        simulate(quadratic(), clients, Scaffold(weighting=w, local_lr=0.1), rounds=5)
        for w in ("samples", "uniform")
    )
    assert weighted.digest == uniform.digest


def test_engines_and_codecs_keep_the_gap_at_zero() -> None:
    for how in ({"cohort": 1}, {"uplink": "q8", "downlink": "q8"}):
        algorithm = Scaffold(weighting="samples", local_lr=0.05, delta_c="")
        assert uneven(algorithm, rounds=6, check="event", **how).control_gap == 0


def test_a_weight_is_frozen_until_the_epoch_ends(tmp_path: Path) -> None:
    """delta_c = -delta_y/A, A = 1/2: a moves c_a by -2, then by -2 - c_a."""
    lab = Lab(linear_loss(1), WEIGHTED, state=tmp_path, target=2)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    assert a.send([1.0], samples=3).counted
    assert b.send([0.5], samples=5).counted
    assert lab.machine.control.integers() == [(3 * -2 + 5 * -1) * STEP]
    assert lab.machine.control_weight == 8
    c = float(np.float32(-11 / 8))

    assert a.send([1.0], samples=100).counted  # has more samples by now: its control weighs 3
    (after,) = lab.machine.control.integers()
    assert after == -11 * STEP + 3 * control([-2 - c])[0]
    lab.start()  # in the middle of a round: rebuilt from checkpoint, row and body
    assert lab.machine.control.integers() == [after]
    assert lab.machine.control_weight == 8

    lab.effects += lab.machine.new_epoch(lab.now)
    assert lab.machine.control_weight == 2  # nobody's is known
    for device in (a, b):
        device.hello()
    assert a.send([1.0], samples=100).counted
    assert lab.machine.control.integers() == [100 * -2 * STEP]
    assert lab.machine.control_weight == 200  # b's is taken to be the mean of those known


def test_a_leave_takes_its_weight_along(tmp_path: Path) -> None:
    lab = Lab(linear_loss(1), WEIGHTED, state=tmp_path, target=2)
    a, b = Puppet(lab, "a"), Puppet(lab, "b")
    assert a.send([1.0], samples=3).counted
    assert b.send([0.5], samples=5).counted
    header, body = a.body(None, kind="leave", round=0, base=bytes(32), c_i=control([-2]))
    receipt = a.deliver(header, body)
    assert (receipt.counted, receipt.reason) == (True, "counted")
    assert lab.machine.control.integers() == [-5 * STEP]
    assert lab.machine.control_weight == 5
    lab.start()
    assert lab.machine.control.integers() == [-5 * STEP]


def test_controls_that_were_counted_unweighted_stay_so(tmp_path: Path) -> None:
    """The weighting is changed in the middle of an epoch, and C is still the sum of w_i c_i."""
    lab = Lab(linear_loss(1), Scaffold(), state=tmp_path, target=1)
    a = Puppet(lab, "a")
    assert a.send([1.0], samples=3).counted
    assert lab.machine.control.integers() == [-2 * STEP]
    lab.start(algorithm=WEIGHTED)
    a.hello()
    assert a.send([1.0], samples=3).counted  # of the round that is open: as it was announced
    assert a.send([1.0], samples=3).counted
    assert lab.machine.control_weight == 1
