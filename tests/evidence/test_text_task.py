"""The next character, in short."""

import pytest

from bench.evidence.text_task import EXPERIMENT, Cell


@pytest.mark.parametrize(
    ("algorithm", "optimizer"),
    [("fedavg", {}), ("fedavg", {"optimizer": "adam"}), ("scaffold", {})],
)
def test_it_learns(algorithm, optimizer):
    """A space is right for one character in six. The worst roles are never above all of them."""
    more = {"local_lr": 0.3, "server_lr": 0.01} if optimizer else {}
    cell = Cell(algorithm=algorithm, rounds=8, local_steps=20, **optimizer, **more)
    found = EXPERIMENT.work(cell)
    assert found["accuracy"] > 0.2
    assert found["least"] <= found["worst_decile"] <= found["accuracy"] <= found["most"]
    assert found["control_gap"] == 0
