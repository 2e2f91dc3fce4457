"""Each scheme of a plan has x86-64's loss and gradients on an emulated Raspberry Pi 4."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from emulation.gradients import SIZES, Arrays, gradients, points
from emulation.pi import Pi
from torch import nn

from kellet.sdk import Plan
from kellet.sdk.authoring import export
from kellet.sdk.plan.schemes import SCHEMES

pytestmark = pytest.mark.timeout(400)
CLOSE = 1e-5

Plans = Mapping[str, Plan]


def wide() -> Plan:
    """A perceptron with layers so wide that an int8 forward pays: the built-in plans have none."""
    torch.manual_seed(3)
    layers = [nn.Linear(48, 160), nn.ReLU(), nn.Linear(160, 144), nn.ReLU(), nn.Linear(144, 6)]
    example = torch.randn(6, 48), torch.arange(6)
    return export(nn.Sequential(*layers), None, *example, name="wide")


@pytest.fixture(scope="module")
def plans() -> Plans:
    return {"wisdm": Plan.open("wisdm"), "har": Plan.open("har"), "wide": wide()}


@pytest.fixture(scope="module")
def given(plans: Plans) -> Arrays:
    return points(plans)


@pytest.fixture(scope="module")
def here(plans: Plans, given: Arrays) -> Arrays:
    return gradients(plans, given)


@pytest.fixture(scope="module")
def there(pi: Pi, plans: Plans, given: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Arrays:
    folder = tmp_path_factory.mktemp("points")
    for name, plan in plans.items():
        (folder / f"{name}.kplan").write_bytes(plan.raw)
    np.savez(folder / "points.npz", **given)
    pi.run("-m", "emulation.gradients", folder)
    with np.load(folder / "found.npz") as found:
        return dict(found)


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *((name, scheme) for name in ("wisdm", "har") for scheme in SCHEMES[:3]),
        *(("wide", scheme) for scheme in SCHEMES),
    ],
)
def test_loss_and_gradients_agree(
    name: str,
    scheme: str,
    here: Arrays,
    there: Arrays,
    record_property: Callable[[str, object], None],
) -> None:
    worst = 0.0
    for i in range(len(SIZES)):
        for what in ("loss", "grads"):
            wanted = here[f"{name} {scheme} {i} {what}"]
            size = float(np.abs(wanted).max())
            assert size > 1e-3
            worst = max(worst, np.abs(there[f"{name} {scheme} {i} {what}"] - wanted).max() / size)
    record_property("worst", worst)
    assert worst <= CLOSE


def test_every_scheme_is_compared(plans: Plans, here: Arrays, there: Arrays) -> None:
    assert [plans[name].schemes for name in ("wisdm", "har")] == [SCHEMES[:3]] * 2
    assert plans["wide"].schemes == SCHEMES
    assert {*there} == {*here}


def test_int8_weights_are_held_with_the_same_bits(here: Arrays, there: Arrays) -> None:
    held = [key for key in here if key.endswith("held")]
    assert len(held) == len(SIZES) * (2 + 2 + 3)
    for key in held:
        assert here[key].tobytes() == there[key].tobytes(), key
