"""An emulated Raspberry Pi 4 takes part in rounds with devices on x86-64, over MQTT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emulation.pi import Pi
from support.fleet import Fleet
from support.processes import Child

from kellet.sdk import Plan
from kellet.sdk.tasks import task
from kellet.server.brokers import open_broker

pytestmark = pytest.mark.timeout(300)

PI = "pi-4b"
USERS = {PI: 3, "ada": 8, "bob": 20}
SCAFFOLD = {"name": "scaffold", "local_lr": 0.05, "local_steps": 20, "batch_size": 20}
ROUNDS = (1, 2)  # in the second one the controls take part
PATIENCE = 150.0  # s


def closed(aggregator: Child) -> list[dict[str, object]]:
    """Wait for the last round; nobody may give up."""

    def over(reports: list[dict[str, object]]) -> bool:
        kinds = [report["kind"] for report in reports]
        return "abort" in kinds or kinds.count("round") == len(ROUNDS)

    aggregator.wait(over, f"end of {len(ROUNDS)} rounds", PATIENCE)
    assert not aggregator.reports("abort")
    return aggregator.reports("round")


def test_a_pi_and_others_train_one_model(
    pi: Pi, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    plan = Plan.open("wisdm")
    clients = {name: task("wisdm").load([user]) for name, user in USERS.items()}
    with (
        open_broker("embedded", state_dir=tmp_path) as broker,
        Fleet(
            tmp_path, plan, clients, broker=broker, algorithm=SCAFFOLD, rounds=len(ROUNDS)
        ) as fleet,
    ):
        aggregator = fleet.aggregator()
        devices = [
            fleet.device(name, python=pi.python) if name == PI else fleet.device(name)
            for name in clients
        ]
        rounds = closed(aggregator)
        assert aggregator.end() == 0
        assert [device.end() for device in devices] == [0, 0, 0]
        record_property("models", [each["model"] for each in rounds])
        assert [(each["round"], each["state"]) for each in rounds] == [
            (round_, "closed") for round_ in ROUNDS
        ]

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
        blob = fleet.ledger.folder / "blobs" / str(rounds[-1]["model"])
        model = np.frombuffer(blob.read_bytes(), "<f4")
        moved = np.abs(fleet.undisturbed.model - plan.initial()).max()
        assert moved > 0.01
        assert np.abs(model - fleet.undisturbed.model).max() < 1e-5 * moved
