"""Given the same gradients, the same update bytes: on every backend, and everywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.update_bytes import CASES, update

from kellet import kernels

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "update_bytes.json").read_text())


@pytest.fixture(params=["as built", "numpy"])
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    before = kernels.backend()
    if request.param == "numpy":
        kernels.use_backend("numpy")
    yield
    kernels.use_backend(before)


@pytest.mark.usefixtures("backend")
def test_updates_are_those_of_the_golden_file() -> None:
    """Other bytes are another version of a scheme: name it so, and then renew the file.

    PYTHONPATH=tests python -m support.update_bytes > tests/data/update_bytes.json
    """
    made = {name: hashlib.sha256(update(*case)).hexdigest() for name, case in CASES.items()}
    assert made == GOLDEN


def test_each_case_is_another_update() -> None:
    assert len(set(GOLDEN.values())) == len(GOLDEN) == len(CASES) >= 80
