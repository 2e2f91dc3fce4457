"""What the planner foretells against whole device processes: within 15 % of their peak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.device_peak import measure

from kellet.firmware_profiles import load
from kellet.sdk import Plan
from kellet.sdk.planner import predict

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session")
def large() -> Plan:
    """A perceptron with 4,853,562 parameters."""
    from kellet.sdk.authoring import export

    torch.manual_seed(0)
    wide, narrow = 1792, 400
    net = torch.nn.Sequential(
        torch.nn.Linear(512, wide),
        torch.nn.ReLU(),
        torch.nn.Linear(wide, wide),
        torch.nn.ReLU(),
        torch.nn.Linear(wide, narrow),
        torch.nn.ReLU(),
        torch.nn.Linear(narrow, 10),
    )
    plan = export(net, None, torch.randn(8, 512), torch.arange(8) % 10, name="large")
    assert plan.n_params == 4_853_562
    return plan


def compare(folder: Path, plan: Plan, scheme: str, algorithm: str, *, rounds: int = 3) -> None:
    samples = 256
    # Under the profile of the machine that the constants are of, so that nothing else differs.
    found = measure(
        folder,
        plan,
        scheme=scheme,
        algorithm=algorithm,
        batch=32,
        samples=samples,
        rounds=rounds,
        options=("--profile", "x86_64"),
    )
    told = predict(
        plan, load("x86_64"), scheme=scheme, algorithm=algorithm, batch=32, samples=samples
    )
    print(f"{plan.manifest.name} {scheme} {algorithm}: {found.peak_mb} MB, told {told.peak_mb:.1f}")
    assert found.schemes == {told.scheme}
    assert told.peak_mb == pytest.approx(found.peak_mb, rel=0.15)
    assert found.disk_mb <= 1.02 * told.storage_mb
    assert found.up <= told.up <= 1.02 * found.up + 3000


@pytest.mark.parametrize("scheme", ["f32", "w8.row"])
@pytest.mark.parametrize(("name", "algorithm"), [("wisdm", "fedprox"), ("har", "scaffold")])
def test_the_peak_of_a_small_plan(name: str, algorithm: str, scheme: str, tmp_path: Path) -> None:
    compare(tmp_path, Plan.open(name), scheme, algorithm)


@pytest.mark.parametrize(
    ("scheme", "algorithm"),
    [
        ("f32", "fedprox"),
        ("w8.row", "fedprox"),
        pytest.param("f32", "scaffold", marks=pytest.mark.slow),
        pytest.param("w8.row", "scaffold", marks=pytest.mark.slow),
    ],
)
def test_the_peak_of_five_million_parameters(
    large: Plan, scheme: str, algorithm: str, tmp_path: Path
) -> None:
    compare(tmp_path, large, scheme, algorithm, rounds=2)


def test_samples_are_in_the_peak(tmp_path: Path) -> None:
    """A hundred thousand rows of WISDM add what the planner says they do, within a fifth."""
    plan = Plan.open("wisdm")
    features = int(np.prod(plan.manifest.input.shape))
    peaks = []
    for samples in (100, 100_000):
        folder = tmp_path / str(samples)
        folder.mkdir()
        found = measure(
            folder,
            plan,
            scheme="f32",
            algorithm="fedprox",
            batch=32,
            samples=samples,
            rounds=1,
            options=("--profile", "x86_64"),
        )
        peaks.append(found.peak_mb)
    added = 99_900 * (4 * features + 8) / 1e6
    assert peaks[1] - peaks[0] == pytest.approx(added, rel=0.2)
