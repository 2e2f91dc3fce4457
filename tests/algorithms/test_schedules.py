"""How local_lr changes from round to round: factors by hand, and what devices are told."""

import math
from pathlib import Path

import numpy as np
import pytest
from algorithms.local import rows
from machines.puppet import Lab, Puppet
from support.toy_plans import linear_loss

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import UsageError
from kellet.server import simulate
from kellet.server.schedules import parse


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("", [1, 1, 1, 1, 1]),
        ("exp:0.5", [1, 1 / 2, 1 / 4, 1 / 8, 1 / 16]),
        ("step:2:0.1", [1, 1, 0.1, 0.1, 0.01]),
        ("cosine:2:0.5", [1, 0.75, 0.5, 0.5, 0.5]),
        (
            "cosine:4",
            [1, 0.505 + 0.495 * math.sqrt(0.5), 0.505, 0.505 - 0.495 * math.sqrt(0.5), 0.01],
        ),
        ("warmup:4", [1 / 4, 1 / 2, 3 / 4, 1, 1]),
        ("warmup:2,exp:0.5", [1 / 2, 1 / 2, 1 / 4, 1 / 8, 1 / 16]),
    ],
)
def test_factors(text: str, factors: list[float]) -> None:
    schedule = parse(text)
    assert [schedule.factor(round_) for round_ in range(1, 6)] == pytest.approx(factors, rel=1e-12)


def test_a_rate_never_vanishes() -> None:
    assert parse("exp:0.1").factor(10_000) == 1e-6


@pytest.mark.parametrize(
    "text",
    ["exp", "exp:0", "exp:1.5", "exp:x", "step:3", "step:0:0.5", "cosine", "linear:3", "exp:.5:2"],
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"cosine:ROUNDS"):
        parse(text)


def test_the_model_takes_the_rate_of_its_round() -> None:
    """The gradient is 1, one step a round: -(1 + 1/2 + 1/4)/4."""
    algorithm = FedAvg(local_lr=0.25, local_steps=1)
    history = simulate(linear_loss(1), {"a": rows([1.0])}, algorithm, rounds=3, schedule="exp:0.5")
    assert history.model.tolist() == [-(1 + 1 / 2 + 1 / 4) / 4]


def test_controls_are_divided_by_the_rates_that_were_run() -> None:
    """With a constant gradient c_i is that gradient, whatever the rate."""
    history = simulate(
        linear_loss(1),
        {"a": rows([1.0]), "b": rows([-3.0])},
        Scaffold(local_lr=0.1, local_steps=3),
        rounds=4,
        schedule="warmup:3",
        check="event",
    )
    assert [history.c_i["a"][0], history.c_i["b"][0]] == pytest.approx([1, -3], abs=1e-5)


def test_a_schedule_is_no_change_of_settings(tmp_path: Path) -> None:
    lab = Lab(linear_loss(1), FedAvg(), state=tmp_path, target=1, schedule=parse("exp:0.5"))
    first = Puppet(lab)
    for expected in (0.05, 0.025):
        announced = lab.round.algorithm["local_lr"]
        assert announced == float(np.float32(expected))
        assert first.send([1.0]).counted
    lab.start()
    assert lab.reports("settings_changed") == []
    lab.start(schedule=parse("exp:0.25"))
    (report,) = lab.reports("settings_changed")
    assert report["changed"]["local_lr"] == pytest.approx([0.0125, 0.05 / 16])
