"""Clients on a Ray cluster of two nodes, on loopback, come to what they come to in one process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from simulate_engines.fleets import CASES, LOCAL, assert_same, broken, killed, run

from kellet.sdk.algorithms import FedAvg
from kellet.sdk.errors import DataError, FleetError, UsageError

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU, joined by their address, as machines would be."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    made.add_node(**node)
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = made.address
    try:
        yield made
    finally:
        if before is None:
            del os.environ["RAY_ADDRESS"]
        else:
            os.environ["RAY_ADDRESS"] = before
        made.shutdown()


@pytest.mark.parametrize(
    "case", ["fedavg, adam, tested", "scaffold, two int8 schemes, coded both ways"]
)
def test_two_nodes_come_to_the_same_bits(cluster: Any, case: str) -> None:
    algorithm, options = CASES[case]
    assert_same(run(algorithm, **options), run(algorithm, engine="ray", **options))
    assert not ray.is_initialized()  # what was joined is left


def test_a_killed_actor_ends_the_run_and_is_named(cluster: Any) -> None:
    with pytest.raises(FleetError, match=r"worker [12] of 2 has ended"):
        run(FedAvg(**LOCAL), manages=killed, engine="ray")


def test_an_error_in_an_actor_is_the_error_of_the_run(cluster: Any) -> None:
    with pytest.raises(DataError, match="has lost its data - bring it back"):
        run(FedAvg(**LOCAL), manages=broken, engine="ray")


def test_more_workers_than_cpus_are_refused_and_not_waited_for(cluster: Any) -> None:
    with pytest.raises(UsageError, match="the Ray cluster has 2 CPUs"):
        run(FedAvg(**LOCAL), engine="ray", workers=3)
