"""Each scheme of the built-in plans has x86-64's loss and gradients on an emulated Pi."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from emulation.gradients import BATCHES, Arrays, gradients, points
from emulation.pi import Pi

from kellet.sdk import Plan

pytestmark = pytest.mark.timeout(300)
CLOSE = 1e-5
SCHEMES = [(name, scheme) for name in BATCHES for scheme in Plan.open(name).schemes]


@pytest.fixture(scope="module")
def given() -> Arrays:
    return points()


@pytest.fixture(scope="module")
def here(given: Arrays) -> Arrays:
    return gradients(given)


@pytest.fixture(scope="module")
def there(pi: Pi, given: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    folder = tmp_path_factory.mktemp("points")
    np.savez(folder / "given.npz", **given)
    pi.run("-m", "emulation.gradients", folder / "given.npz", folder / "found.npz", timeout=200)
    with np.load(folder / "found.npz") as found:
        return dict(found)


@pytest.mark.parametrize(("name", "scheme"), SCHEMES)
def test_loss_and_gradients_agree(
    name: str,
    scheme: str,
    here: Arrays,
    there: Arrays,
    record_property: Callable[[str, object], None],
) -> None:
    worst = 0.0
    for i in range(len(BATCHES[name])):
        for what in ("loss", "grads"):
            wanted = here[f"{name} {scheme} {i} {what}"]
            size = float(np.abs(wanted).max())
            assert size > 1e-3
            worst = max(worst, np.abs(there[f"{name} {scheme} {i} {what}"] - wanted).max() / size)
    record_property("worst", worst)
    assert worst <= CLOSE


def test_int8_weights_are_held_with_the_same_bits(here: Arrays, there: Arrays) -> None:
    held = [key for key in here if key.endswith("held")]
    assert len(held) == sum(
        len(BATCHES[name]) for name, scheme in SCHEMES if scheme.startswith("w8")
    )
    for key in held:
        assert here[key].tobytes() == there[key].tobytes(), key
