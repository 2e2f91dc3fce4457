"""``kellet server --selection`` and ``kellet run --share-histogram``, as processes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import Running, command
from support.toy_plans import softmax_regression

from kellet.sdk.errors import UsageError
from kellet.sdk.histogram import to_shares
from kellet.server import FleetConfig
from kellet.server.commands.round_options import RoundOptions
from kellet.server.commands.selection import SelectionOptions
from kellet.server.ledger import Ledger
from kellet.server.selection import Available, FirstCome, Similar, Weighted

MODULE = """
import numpy as np

def load(device):
    y = np.full(30, ord(device) % 3)
    return np.random.default_rng(ord(device)).normal(size=(30, 6)).astype(np.float32), y

def clients():
    return {name: load(name) for name in "abcdef"}

def test():
    x, y = zip(*map(load, "abc"))
    return np.concatenate(x), np.concatenate(y)
"""
PLAN = softmax_regression(6, 3)


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "toy.kplan").write_bytes(PLAN.raw)
    (folder / "mine.py").write_text(MODULE)
    return folder


def test_devices_share_by_their_owners_word_alone(desk: Path, tmp_path: Path) -> None:
    """a shares labels, b with noise, c nothing: not by default, and not because it is asked."""
    sharing = {
        "a": ("--share-histogram", "labels"),
        "b": ("--share-histogram", "labels+features", "--histogram-epsilon", 2),
        "c": (),
    }
    with ExitStack() as stack:
        server = stack.enter_context(
            Running(
                *("server", "toy.kplan", "--state", tmp_path / "server", "--rounds", 4),
                *("--selection", "similar", "--target", 2, "--over-select", 1, "--feature-bins", 3),
                *("--min-devices", 3, "--local-steps", 2, "--test", "mine:test"),
                cwd=desk,
            )
        )
        broker = server.wait_for("serving")["broker"]
        devices = {
            name: stack.enter_context(
                Running(
                    *("run", name, "--separate-bulk", "--until-finished", "--data", "mine:load"),
                    *("--state", tmp_path / name, *options),
                    cwd=desk,
                    env={"KELLET_BROKER": broker},
                )
            )
            for name, options in sharing.items()
        }
        ends = {name: device.end() for name, device in devices.items()}
        done = server.end()
    assert done.code == 0, done.err
    summary = done.lines[-1]
    assert summary["rounds"] == 4
    assert 0.9 < summary["asked_entropy"] <= 1
    rounds = [line for line in done.lines if line["event"] == "round"]
    assert [len(line["counted"]) for line in rounds] == [2] * 4
    told = {n: [x for x in end.lines if x["event"] == "histogram"] for n, end in ends.items()}
    assert (len(told["a"]), len(told["b"]), len(told["c"])) == (1, 1, 0)
    assert told["b"][0]["epsilon_spent"] == 2.0
    ledger = Ledger(tmp_path / "server" / "ledger.db")
    kept = {m.device: m.histogram for m in ledger.members()}
    ledger.close()
    assert kept["c"] is None
    assert kept["a"] is not None
    assert kept["a"].shares == to_shares([0, 30, 0], [3])  # ord("a") % 3 is 1
    assert kept["b"] is not None
    assert kept["b"].epsilon == 2.0
    assert len(np.frombuffer(kept["b"].shares, "<f4")) == 3 + 6 * 3


def test_what_the_options_come_to() -> None:
    def make(**given: object) -> object:
        options = SelectionOptions(**given)  # type: ignore[arg-type]
        return options.make(4, seed=7, enough=3, window=0.5, manifest=PLAN.manifest)

    assert make() == FirstCome() == make(selection="first-come")
    assert make(selection="weighted") == Weighted(4, 7, 3, 0.5)
    assert make(selection="available", window=0.0) == Available(4, 7, 3, 0.0)
    similar = make(selection="similar", distance="jensen-shannon", threshold=0.25, fairness=1.0)
    assert similar == Similar(4, 7, 3, 0.5, distance="jensen-shannon", threshold=0.25, fairness=1.0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"window": 2.0}, "--window"),
        ({"selection": "uniform", "neighbours": 2}, "--neighbours"),
        ({"selection": "weighted", "feature_bins": 2}, "--feature-bins"),
        ({"selection": "similar", "fairness": 2.0}, "--fairness"),
        ({"selection": "similar", "feature_bins": 2}, "--feature-bins"),  # without a test set
    ],
)
def test_options_that_cannot_be_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        RoundOptions().selection(SelectionOptions(**given), PLAN.manifest, None)


def test_rounds_ask_as_many_as_their_options_say() -> None:
    rounds = RoundOptions(target=4, over_select=1.3, deadline=2.0, seed=7)
    chosen = SelectionOptions(selection="available")
    made = rounds.selection(chosen, PLAN.manifest, None)
    assert made == Available(6, 7, 4, 0.5)  # a quarter of the deadline
    longer = SelectionOptions(selection="available", window=2.0)
    with pytest.raises(UsageError, match="deadline"):
        FleetConfig(selection=longer.make(2, seed=0, manifest=PLAN.manifest), deadline=2.0)


def test_the_program_refuses_in_one_line(desk: Path, tmp_path: Path) -> None:
    done = command("server", "toy.kplan", "--state", tmp_path, "--window", 2, cwd=desk)
    done.failed(2, "--window", "--selection")


def test_a_device_with_settings_that_mean_nothing(desk: Path, tmp_path: Path) -> None:
    done = command(
        *("run", "a", "--broker", "mqtt://127.0.0.1:1", "--data", "mine:load"),
        *("--state", tmp_path, "--share-histogram", "labels", "--histogram-epsilon", -1),
        cwd=desk,
    )
    done.failed(2, "--histogram-epsilon")


def test_a_simulation_takes_the_same_options_and_sweeps_them(desk: Path) -> None:
    fleet = ("simulate", "toy.kplan", "--data", "mine:clients", "--cohort", 3, "--rounds", 4)
    one = command(
        *fleet,
        *("--selection", "similar", "--neighbours", 1, "--fairness", 0, "--json"),
        *("--feature-bins", 2, "--test", "mine:test"),
        cwd=desk,
    )
    assert one.code == 0, one.err
    rounds = [line for line in one.lines if line["event"] == "round"]
    kinds = [sorted(ord(name) % 3 for name in line["asked"]) for line in rounds]
    assert kinds[1:] == [[0, 1, 2]] * 3
    assert rounds[-1]["asked_entropy"] == rounds[-1]["counted_entropy"]
    assert one.lines[-1]["control_gap"] == 0
    swept = ("--sweep", "selection=uniform,similar", "neighbours=0,1", "--json")
    many = command(*fleet, *swept, cwd=desk)
    assert many.code == 0, many.err
    runs = [line for line in many.lines if line["event"] == "run"]
    assert len(runs) == 3  # uniform has no neighbours
