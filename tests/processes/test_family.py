"""Every algorithm over MQTT comes to its simulation's bits, with a device killed on the way."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from support.fleet import KILLED, MakeFleet

OWN = Path(__file__).parents[2] / "examples" / "own"
SHIPPED = [
    {"name": "feddyn", "alpha": 0.1},
    {"name": "fednova"},
    {"name": "scaffold_m", "beta": 0.5},
]


@pytest.mark.parametrize("algorithm", SHIPPED, ids=lambda a: str(a["name"]))
def test_an_algorithm_is_what_its_simulation_is(
    make_fleet: MakeFleet, algorithm: dict[str, Any]
) -> None:
    fleet = make_fleet("a b", algorithm=algorithm | {"local_lr": 0.1}, rounds=4)
    _live_through(fleet)


@pytest.mark.parametrize("name", ["fair", "inertia"])
def test_ones_own_is_what_its_simulation_is(
    make_fleet: MakeFleet, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With a memory, an update that a dead device had saved must lead to it once."""
    monkeypatch.syspath_prepend(str(OWN))
    importlib.import_module(name)
    fleet = make_fleet("a b", algorithm={"name": name, "local_lr": 0.1}, rounds=4)
    _live_through(fleet, imports=[str(OWN / f"{name}.py")])


def _live_through(fleet: Any, **spec: Any) -> None:
    aggregator = fleet.aggregator(**spec)
    other = fleet.device("b", **spec)
    for method, when in (("settle", "before"), ("settle", "after"), ("save_pending", "after")):
        die = {"at": f"Store.{method}", "when": when}
        assert fleet.device("a", die=die, **spec).end() == KILLED
    assert fleet.device("a", **spec).end() == 0
    assert (other.end(), aggregator.end()) == (0, 0)
    fleet.check_undisturbed()
