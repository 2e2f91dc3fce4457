"""Clients in processes of this machine come to what they come to in one."""

import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
from simulate_engines.fleets import CASES, LOCAL, assert_same, broken, killed, own, run

from kellet.sdk.algorithms import FedAvg, Scaffold
from kellet.sdk.errors import DataError, FleetError, UsageError
from kellet.server.simulate.crew import Terms
from kellet.server.simulate.engines import start

OWN = Path(__file__).parents[2] / "examples" / "own"


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("case", CASES)
def test_two_processes_come_to_the_same_bits(case: str) -> None:
    algorithm, options = CASES[case]
    assert_same(run(algorithm, **options), run(algorithm, engine="local", workers=2, **options))


def test_a_users_own_algorithm_is_imported_by_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that keeps a memory on each device: its state is its worker's."""
    monkeypatch.syspath_prepend(OWN)
    algorithm = own("inertia")
    assert_same(run(algorithm), run(algorithm, engine="local", workers=2))


def test_a_killed_worker_ends_the_run_and_is_named() -> None:
    with pytest.raises(FleetError, match=r"worker [12] of 2 has ended.*killed by SIGKILL"):
        run(FedAvg(**LOCAL), manages=killed, engine="local", workers=2)


def test_an_error_in_a_worker_is_the_error_of_the_run() -> None:
    with pytest.raises(DataError, match="has lost its data - bring it back") as caught:
        run(FedAvg(**LOCAL), manages=broken, engine="local", workers=2)
    assert "in broken" in str(caught.value.__cause__)  # where in the worker it was raised


def test_what_workers_cannot_be_given_is_refused() -> None:
    with pytest.raises(UsageError, match=r"cannot be given.*inline engine"):
        run(FedAvg(**LOCAL), manages=lambda _r, _c, k: k, engine="local", workers=1)


@pytest.mark.parametrize(
    ("engine", "workers", "why"),
    [
        ("threads", None, "choose one of inline, local, ray"),
        ("inline", 2, "trains in this process"),
        ("local", 0, "at least 1 worker"),
    ],
)
def test_engines_that_there_are_not(engine: Any, workers: int | None, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        run(FedAvg(**LOCAL), engine=engine, workers=workers)


def test_an_algorithm_of_the_main_program_cannot_go_to_another_machine() -> None:
    kind = type("Mine", (Scaffold,), {"__module__": "__main__"})
    with pytest.raises(UsageError, match="put it into a module of its own"):
        start("ray", Terms(None, "fleet"), {}, kind())  # type: ignore[arg-type]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r'pip install "kellet\[cluster\]"'):
        run(FedAvg(**LOCAL), engine="ray")
