"""A plan may keep batch statistics on each device: they never reach the model."""

from __future__ import annotations

import numpy as np
import pytest
from machines.inline import client

torch = pytest.importorskip("torch")

from kellet.sdk.algorithms import FedAvg  # noqa: E402
from kellet.sdk.authoring import export  # noqa: E402
from kellet.sdk.plan import Plan  # noqa: E402
from kellet.server.simulate import Simulation  # noqa: E402


def plan(statistics: str) -> Plan:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU(), torch.nn.Linear(4, 2)
    )
    return export(
        model, None, torch.randn(8, 3), torch.randint(0, 2, (8,)), name="bn", statistics=statistics
    )


def run(statistics: str) -> tuple[Plan, Simulation]:
    rng = np.random.default_rng(0)
    clients = {
        name: (rng.normal(shift, 1, (16, 3)).astype(np.float32), rng.integers(0, 2, 16))
        for name, shift in {"near": 0.0, "far": 5.0}.items()
    }
    bundle = plan(statistics)
    sim = Simulation(
        bundle,
        clients,
        FedAvg(local_lr=0.1, batch_size=8),
        rounds=2,
        cohort=None,
        seed=0,
        test=None,
        initial=None,
        check="round",
        keep_models=False,
        on_round=None,
    )
    sim.run()
    return bundle, sim


def test_statistics_that_are_averaged_reach_the_model() -> None:
    bundle, sim = run("mean")
    assert bundle.local == ()
    buffers = slice(bundle.n_train, bundle.n_update)
    assert np.all(sim.server.model[buffers] != bundle.initial()[buffers])
    assert client(sim, "far").store.kept(bundle.id) is None


def test_local_statistics_stay_where_they_were_made_and_last() -> None:
    bundle, sim = run("local")
    assert [part.stop - part.start for part in bundle.local] == [4, 4]
    buffers = slice(bundle.n_train, bundle.n_update)
    assert np.array_equal(sim.server.model[buffers], bundle.initial()[buffers])
    near, far = (
        np.frombuffer(client(sim, name).store.kept(bundle.id) or b"", "<f4")
        for name in ("near", "far")
    )
    assert len(near) == len(far) == 8
    assert np.all(near != far)

    assert np.all(far != bundle.initial()[buffers])
