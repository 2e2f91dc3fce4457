"""An emulated Raspberry Pi 4 takes part in rounds with devices on x86-64, over MQTT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulation.pi import Pi
from support.fleet import Fleet, needs_mosquitto
from support.processes import Child

from kellet.sdk import Plan, algorithms
from kellet.sdk.tasks import task
from kellet.server import simulate
from kellet.server.brokers import open_broker

pytestmark = pytest.mark.timeout(400)

PI = "pi-4b"
USERS = {PI: 3, "ada": 8, "bob": 20}
SCAFFOLD: dict[str, Any] = {
    "name": "scaffold",
    "local_lr": 0.05,
    "local_steps": 20,
    "batch_size": 20,
}
ROUNDS = (1, 2)  # in the second one the controls take part
SEED = 5
PATIENCE = 150.0  # s


def closed(aggregator: Child) -> list[dict[str, Any]]:
    """Wait for the last round; nobody may give up."""

    def over(reports: list[dict[str, Any]]) -> bool:
        kinds = [report["kind"] for report in reports]
        return "abort" in kinds or kinds.count("round") == len(ROUNDS)

    aggregator.wait(over, f"end of {len(ROUNDS)} rounds", PATIENCE)
    assert not aggregator.reports("abort")
    return aggregator.reports("round")


# How the Pi and the others hold their weights; how far the models may then be from those of the
# simulation, which is x86-64 throughout, relative to how far training moved them. A stochastic
# rounding may fall on the other side where a gradient's last bit differs.
@pytest.mark.parametrize(
    ("broker", "scheme", "close"),
    [
        pytest.param("embedded", "f32", 1e-5, id="f32"),
        pytest.param("mosquitto", "w8.row", 1e-3, id="w8.row", marks=needs_mosquitto),
    ],
)
def test_a_pi_and_others_train_one_model(
    pi: Pi,
    *,
    broker: str,
    scheme: str,
    close: float,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    plan = Plan.open("wisdm")
    clients = {name: task("wisdm").load([user]) for name, user in USERS.items()}
    schemes = dict.fromkeys(clients, "f32/1") | {PI: f"{scheme}/1"}
    options: dict[str, dict[str, Any]] = {
        name: {"profile": "x86_64", "changes": {"schemes": ["f32"]}} for name in clients
    }
    changes = {"schemes": [scheme], "threads": 1}
    options[PI] = {"profile": "pi_4b", "changes": changes, "python": pi.python}
    with (
        open_broker(broker, state_dir=tmp_path) as opened,
        Fleet(
            tmp_path,
            plan,
            clients,
            broker=opened,
            algorithm=SCAFFOLD,
            rounds=len(ROUNDS),
            seed=SEED,
            schemes=["w8.row", "f32"],
        ) as fleet,
    ):
        aggregator = fleet.aggregator()
        devices = [fleet.device(name, **options[name]) for name in clients]
        rounds = closed(aggregator)
        assert aggregator.end() == 0
        assert [device.end() for device in devices] == [0, 0, 0]
        record_property("models", [each["model"] for each in rounds])
        assert [(each["round"], each["state"]) for each in rounds] == [
            (round_, "closed") for round_ in ROUNDS
        ]
        held = list(schemes.values())
        for each in rounds:
            assert each["schemes"] == {name: held.count(name) for name in held}

        # Each device's update is counted in each round, once, and each control is what was.
        assert fleet.ledger.counted() == [(r, name) for r in ROUNDS for name in sorted(clients)]
        assert [(each.round, each.counted) for each in fleet.disk(PI).receipts()] == [
            (round_, True) for round_ in ROUNDS
        ]
        for name in clients:
            fleet.check_control(name)
            assert np.abs(fleet.disk(name).control()).max() > 0
        assert fleet.gap() == 0

        # The model is x86-64's, but for the rounding of the Pi's gradients.
        assert fleet.ledger.models() == [each["model"] for each in rounds]
        blob = fleet.ledger.folder / "blobs" / rounds[-1]["model"]
        model = np.frombuffer(blob.read_bytes(), "<f4")
        expected = simulate(
            plan,
            clients,
            algorithms.make(**SCAFFOLD),
            rounds=len(ROUNDS),
            seed=SEED,
            scheme=schemes,
        ).model[: model.size]
        moved = np.linalg.norm(expected - plan.initial()[: model.size])
        assert moved > 0.5
        away = np.linalg.norm(model - expected) / moved
        record_property("away", away)
        assert away < close
