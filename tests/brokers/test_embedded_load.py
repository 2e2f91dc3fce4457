"""The load under which the embedded broker was configured: nothing lost, memory flat."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.broker_load import FleetLoad, slope

from kellet.server.brokers import open_broker

DEVICES = 8
UP_PARTS = 16  # of 64 KiB: 1 MiB a device, 8 MiB together, which is all that admission allows
DOWN_PARTS = 16


@pytest.mark.parametrize(
    ("rounds", "warm_up", "most"),
    [(60, 30, 250_000), pytest.param(300, 60, 60_000, marks=pytest.mark.slow)],
)
@pytest.mark.timeout(300)
def test_rounds_with_admission_full_lose_nothing_and_leave_memory_flat(
    tmp_path: Path, rounds: int, warm_up: int, most: float
) -> None:
    """Each fifth round the server stalls, so that the whole 8 MiB lie in the broker.

    The logs of parts fill up to their bound in the warm-up. Those of control
    messages still do afterwards, by about 28 KB a round of 8 devices; the
    shorter run sees the allocator's noise besides. (With control and parts on
    one connection it was 4.4 MB a round.)
    """
    memory: list[float] = []
    with (
        open_broker("embedded", state_dir=tmp_path) as broker,
        FleetLoad(broker, devices=DEVICES, up_parts=UP_PARTS, down_parts=DOWN_PARTS) as fleet,
    ):
        for number in range(rounds):
            fleet.round(number, stall=0.3 if number % 5 == 0 else 0.0)
            if number >= warm_up:
                memory.append(broker.memory() or 0)
        assert broker.starts == 1
    assert fleet.most_admitted == broker.admission_bytes == 8 << 20
    growth = slope(memory)
    assert growth < most, f"{growth:.0f} bytes a round"
    assert max(memory) < 200 << 20
