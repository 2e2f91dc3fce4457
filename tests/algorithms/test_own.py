"""Algorithms of a user's own module: registered, simulated, and what they keep."""

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from algorithms.local import rows, skewed
from machines.puppet import Lab, Puppet
from support.command import command
from support.toy_plans import linear_loss, quadratic, softmax_regression

from kellet.sdk.algorithms import ALGORITHMS, FedAvg, Scaffold, make, register
from kellet.sdk.errors import UsageError
from kellet.sdk.store import Memory, Pending, Store
from kellet.server import FleetConfig, halves, simulate

OWN = Path(__file__).parents[2] / "examples" / "own"


@pytest.fixture(scope="module", autouse=True)
def own() -> None:
    sys.path.insert(0, str(OWN))
    for name in ("fair", "inertia"):
        importlib.import_module(name)
    sys.path.remove(str(OWN))


def test_a_mix_rule_of_ones_own_moves_the_model() -> None:
    """Two clients of 1/2 (w - b)^2 from 0, one step of rate 1/2: delta = b/2, the loss b^2/2.

    b = 2 and -4: losses 2 and 8; with q = 1 the mean is (2*1 - 8*2)/10 = -1.4, with q = 2
    (4*1 - 64*2)/68.
    """
    clients = {"a": rows([1, 2]), "b": rows([1, -4])}
    local: Any = {"local_lr": 0.5, "local_steps": 1}

    def model(q: int) -> float:
        return float(simulate(quadratic(), clients, make("fair", q=q, **local), rounds=1).model[0])

    assert model(0) == pytest.approx(-0.5)
    assert model(1) == pytest.approx(-1.4)
    assert model(2) == pytest.approx(-124 / 68)


def test_a_memory_goes_on_from_round_to_round() -> None:
    """The gradient is 1, the rate 1/4, beta 1/2, two steps a round: m = 1, 3/2 | 7/4, 15/8."""
    algorithm = make("inertia", beta=0.5, local_lr=0.25, local_steps=2)
    history = simulate(linear_loss(1), {"a": rows([1.0])}, algorithm, rounds=2, keep_models=True)
    assert [m[0] for m in history.models] == [-(1 + 3 / 2) / 4, -(1 + 3 / 2 + 7 / 4 + 15 / 8) / 4]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store("a", tmp_path / "a.db")


def pending(seq: int) -> Pending:
    uid = bytes([seq]) * 16
    return Pending(uid, seq, 1, 1, bytes(32), bytes(32), b"body", None)


def vector(value: float) -> Any:
    return np.full(3, value, "<f4")


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("rule", ["receipt", "training"])
def test_a_memory_is_committed_by_its_rule(store: Store, rule: str, counted: bool) -> None:
    plan = bytes(32)
    store.save_pending(pending(1), plan=plan, memory=Memory("own", vector(1), rule))
    before = store.memory(plan, "own")
    assert before == (None if rule == "receipt" else vector(1).tobytes())
    store.settle(pending(1).uid, counted=counted, reason="counted" if counted else "late")
    lasting = counted or rule == "training"
    assert store.memory(plan, "own") == (vector(1).tobytes() if lasting else None)
    assert store.memory(plan, "another") is None
    assert store.memory(bytes([1]) * 32, "own") is None

    store.save_pending(pending(2), plan=plan, memory=Memory("own", vector(2), rule))
    store.new_epoch(2)  # the unsettled update is void, and what came of receipts, too
    assert store.memory(plan, "own") == (vector(2).tobytes() if rule == "training" else None)


def test_a_memory_lasts_over_a_restart(tmp_path: Path) -> None:
    plan = bytes(32)
    store = Store("a", tmp_path / "a.db")
    store.save_pending(pending(1), plan=plan, memory=Memory("own", vector(5), "receipt"))
    store.close()
    store = Store("a", tmp_path / "a.db")
    assert store.memory(plan, "own") is None
    store.settle(pending(1).uid, counted=True, reason="counted")
    store.close()
    assert Store("a", tmp_path / "a.db").memory(plan, "own") == vector(5).tobytes()


def test_an_unknown_algorithm_is_refused_with_the_repair() -> None:
    with pytest.raises(UsageError, match="choose one of fedavg, fedprox, scaffold"):
        make("nobody")


def test_what_is_registered_must_be_an_algorithm() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Nameless(FedAvg):
        pass

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Taken(FedAvg):
        name: ClassVar[str] = "scaffold"

    class NoFields(FedAvg):
        name: ClassVar[str] = "no_fields"

    for kind, words in ((Nameless, "named"), (Taken, "taken"), (NoFields, "frozen dataclass")):
        with pytest.raises(UsageError, match=words):
            register(kind)
    assert ALGORITHMS["scaffold"] is Scaffold
    assert "no_fields" not in ALGORITHMS

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Unregistered(FedAvg):
        name: ClassVar[str] = "unregistered"

    with pytest.raises(UsageError, match="register the device half first"):
        halves.register(Unregistered, halves.ServerHalf)


def test_an_algorithm_without_a_half_has_its_parents() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Fairer(ALGORITHMS["fair"]):  # type: ignore[misc,valid-type]
        name: ClassVar[str] = "fairer"

    half = halves.half_of(Fairer(q=2))
    assert type(half) is halves.HALVES["fair"]
    assert half.weight(halves.Counted(1, 1, 1.0, loss=3.0, drift=0.0)) == 9000


def test_a_memory_is_refused_with_int8_weights() -> None:
    with pytest.raises(UsageError, match="keeps a float32 vector"):
        FleetConfig(algorithm=make("inertia"), schemes=("w8.row",))


def test_own_algorithms_compose_with_sampling_and_restarts() -> None:
    plan, clients = softmax_regression(4, 3), skewed({"a": 20, "b": 33, "c": 5})
    histories = [
        simulate(plan, clients, make(name), rounds=4, cohort=2, check="event")
        for name in ("fair", "inertia", "fair", "inertia")
    ]
    digests = [history.digest for history in histories]
    assert digests[:2] == digests[2:]
    assert digests[0] != digests[1]


def test_the_command_takes_a_module(tmp_path: Path) -> None:
    arguments = ("simulate", "--task", "wisdm", "--rounds", "1", "--devices", "2")
    done = command(*arguments, "--algorithm", "fair:fair", "--set", "q=2", "--json", cwd=OWN)
    assert (done.code, done.lines[-1]["algorithm"]) == (0, "fair"), done.err
    for wrong, words in (
        (("--algorithm", "nowhere:x"), ("no module 'nowhere'",)),
        (("--algorithm", "json:x"), ("registers no algorithm",)),
        (("--algorithm", "fair:unfair"), ("no algorithm 'unfair'",)),
        (("--algorithm", "fair:fair", "--set", "q"), ("NAME=VALUE",)),
        (("--algorithm", "fair:fair", "--set", "z=1"), ("fair has no 'z'",)),
        (("--algorithm", "fair:fair", "--set", "mu=1", "--mu", "1"), ("given twice",)),
    ):
        command(*arguments, *wrong, cwd=OWN).failed(2, *words)


@pytest.mark.parametrize(
    ("method", "answer", "words"),
    [
        ("weight", 1.5, "a weight is a whole number"),
        ("weight", ZeroDivisionError("mine"), "ZeroDivisionError: mine"),
        ("summed", np.zeros(7), r"\(7,\), and \(1,\) is due"),
        ("scale", None, "cannot be used|NoneType"),
        ("step", 3.0, r"\(\), and \(1,\) is due"),
    ],
)
def test_a_half_that_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, method: str, answer: Any, words: str
) -> None:
    class Wrong(halves.ServerHalf):
        pass

    def answering(_self: Any, *_arguments: Any, **_named: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    setattr(Wrong, method, answering)
    monkeypatch.setitem(halves.HALVES, "fair", Wrong)
    with pytest.raises(UsageError, match=words):
        simulate(quadratic(), {"a": rows([1, 2])}, make("fair"), rounds=1)


def test_hyperparameters_are_held_to_their_types() -> None:
    for wrong in ("x", 1.5, True):
        with pytest.raises(UsageError, match="a whole number"):
            make("fair", q=wrong)
    with pytest.raises(UsageError, match="true or false"):
        make("fedprox", implicit=1)


def test_a_fleet_goes_on_without_a_module_that_it_once_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(linear_loss(1), make("fair"), state=tmp_path, target=1, rounds=1)
    assert Puppet(lab).send([1.0], loss=1.0).counted
    monkeypatch.delitem(ALGORITHMS, "fair")
    lab.start(algorithm=FedAvg(), rounds=2)
    (report,) = lab.reports("settings_changed")
    assert report["changed"]["name"] == ["fair", "fedavg"]
