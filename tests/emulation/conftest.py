"""The emulated Pi, laid out once for all tests of this folder."""

from __future__ import annotations

import pytest
from emulation.pi import Pi, device_wheel, install, need_pi


@pytest.fixture(scope="session")
def pi(tmp_path_factory: pytest.TempPathFactory) -> Pi:
    """A Raspberry Pi 4 whose Kellet is the wheel of ``pi_4b``, built from this tree."""
    need_pi()
    folder = tmp_path_factory.mktemp("pi")
    install(device_wheel("pi_4b", folder), folder / "site")
    return Pi(folder / "site")
