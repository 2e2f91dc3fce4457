"""What is wrong with a device's data is for the device's own people to read."""

from __future__ import annotations

import numpy as np
from support.fleet import MakeFleet


def test_the_aggregator_is_not_told_what_is_in_the_data(make_fleet: MakeFleet) -> None:
    fleet = make_fleet("a b", rounds=1, target=1, quorum=1, min_members=1)
    x, y = fleet.clients["b"]
    np.savez(fleet.folder / "b.npz", x=np.full_like(x, np.nan), y=y)
    aggregator = fleet.aggregator()
    broken = fleet.device("b")
    told = aggregator.wait_for("abort", device="b")["reason"]
    assert told == "cannot train; its own log says why"
    assert broken.end() != 0
    sound = fleet.device("a")
    assert aggregator.end() == 0
    assert sound.end() == 0
