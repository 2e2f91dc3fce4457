"""Given the same gradients, an emulated Pi sends the same bytes as x86-64."""

from __future__ import annotations

import json

import pytest
from emulation.pi import HERE, Pi

pytestmark = pytest.mark.timeout(400)


def test_updates_have_the_same_bytes(pi: Pi) -> None:
    expected = json.loads((HERE / "data" / "update_bytes.json").read_text())
    assert len(expected) > 20
    assert json.loads(pi.run("-m", "support.update_bytes")) == expected
