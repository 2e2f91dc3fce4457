"""Each scheme of the built-in plans has x86-64's loss and gradients on an emulated Pi."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulation.gradients import gradients, points
from emulation.pi import Pi

from kellet.sdk import Plan

pytestmark = pytest.mark.timeout(300)
CLOSE = 1e-5


@pytest.mark.parametrize("scheme", ["f32/1"])
@pytest.mark.parametrize(("name", "sizes"), [("wisdm", (1, 7, 32)), ("har", (1, 8))])
def test_gradients_agree(
    pi: Pi, name: str, sizes: tuple[int, ...], scheme: str, tmp_path: Path
) -> None:
    plan = Plan.open(name)
    given = points(plan, sizes)
    np.savez(tmp_path / "points.npz", **given)
    files = (tmp_path / "points.npz", tmp_path / "found.npz")
    pi.run("-m", "emulation.gradients", name, scheme, *files, timeout=200)
    expected = gradients(plan, scheme, given)
    with np.load(tmp_path / "found.npz") as found:
        assert {*found} == {*expected}
        for key, wanted in expected.items():
            assert np.abs(wanted).max() > 1e-3
            assert np.abs(found[key] - wanted).max() <= CLOSE * np.abs(wanted).max(), key
