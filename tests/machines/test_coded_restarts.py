"""Kill -9 at every point, where vectors are rounded on their way and what is left out is kept.

Both residuals, a device's and the aggregator's, decide what is sent next: had one been
used twice, or forgotten, the model would come out other than without faults.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machines.network import Fleet
from support.toy_plans import softmax_regression

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.protocol import wire
from kellet.sdk.protocol.messages import Round

PLAN = softmax_regression(2, 3, initial=np.linspace(-1, 1, 9))
DATA = {"a": np.array([[1, 0], [-1, 2]]), "b": np.array([[2, 3], [1, 5], [0.5, -1]])}

FLEETS: dict[str, dict[str, Any]] = {
    "derived": {
        "algorithm": Scaffold(local_lr=0.3, batch_size=1),
        "uplink": ("q8",),
        "downlink": "q8",
    },
    "feedback": {
        "algorithm": FedAvg(local_lr=0.3, batch_size=1),
        "uplink": ("topk",),
        "share": 0.25,
        "feedback": True,
        "downlink": "q8",
    },
    "all": {
        "algorithm": Scaffold(local_lr=0.3, batch_size=1, delta_c="q8"),
        "uplink": ("q8",),
        "feedback": True,
        "downlink": "q8",
    },
}
POINTS = [
    ("derived", "silent"),
    ("derived", "written"),
    ("feedback", "write"),
    ("feedback", "written"),
    ("all", "silent"),
    ("all", "said"),
]


def make(folder: Path, name: str) -> Fleet:
    return Fleet(folder, PLAN, DATA, rounds=3, **FLEETS[name])


def finish(fleet: Fleet) -> tuple[Any, ...]:
    """Run to the end; the model, C, and both sides' residuals."""
    fleet.start().run()
    fleet.let_pass(60)
    fleet.check_end()
    server = fleet.server
    residuals = {name: d.store.residual(PLAN.id) for name, d in fleet.devices.items()}
    return (
        server.machine.digest,
        server.machine.control.integers(),
        server.ledger.residual(),
        residuals,
        [row.state for row in server.ledger.rounds()],
    )


@pytest.mark.parametrize("who", ["server", "b"])
@pytest.mark.parametrize(("name", "place"), POINTS)
def test_a_death_at_any_point_changes_no_bit(folder: Path, name: str, place: str, who: str) -> None:
    node: Callable[[Fleet], Any] = lambda f: f.server if who == "server" else f.devices[who]  # noqa: E731
    calm = make(folder / "calm", name)
    wanted = finish(calm)
    assert wanted[4] == ["closed"] * 3
    assert wanted[2] is not None
    feedback = FLEETS[name].get("feedback", False)
    assert all((left is not None) is feedback for left in wanted[3].values())
    deaths = 0
    last = node(calm).writes if place in ("write", "written") else node(calm).steps
    for point in range(1, last + 1):
        fleet = make(folder / f"{point}", name)
        node(fleet).die_at = (place, point)
        assert finish(fleet) == wanted, f"killed at {place} {point}"
        deaths += node(fleet).life
    assert deaths >= 5


def test_what_the_model_leaves_out_is_sent_later(folder: Path) -> None:
    """The announced models differ from the exact ones by less than a unit, and on average less."""
    fleet = Fleet(
        folder,
        PLAN,
        DATA,
        FedAvg(local_lr=1e-7, batch_size=0),  # a model that stands nearly still
        rounds=24,
        downlink="q8",
    )
    fleet.start().run()
    exact = PLAN.initial()
    announced = []
    for row in fleet.server.ledger.rounds():
        message: Round = wire.unpack(row.announcement, Round)
        assert message.model.codec == "q8"
        assert message.model.size == 4 * 4 + 9  # four rows, nine values
        announced.append(message.model.sha256)
    # The same model is not announced twice in a row: what was left out is added.
    assert len(set(announced)) > 6
    residual = fleet.server.blobs.get(fleet.server.ledger.residual() or b"")
    assert residual is not None
    left = np.frombuffer(residual, "<f4")
    # The sum of all that was announced is 24 models less what is left now: the mean error is
    # 1/24 of one rounding.
    assert np.abs(left).max() <= np.abs(exact).max() / 127
    assert np.abs(left).max() > 0
