"""The demo from end to end: real processes, a real broker, kills."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from support.command import Running, command, nothing_left

from kellet.sdk import Plan, tasks
from kellet.sdk.durable import Database
from kellet.sdk.store import Store
from kellet.server.demo.invariant import audit_fleet
from kellet.server.report.record import load_run

PROMISED = {
    "algorithm",
    "rounds",
    "accuracy",
    "loss",
    "devices",
    "updates_counted",
    "updates_refused",
    "control_gap",
    "uplink_bytes",
    "downlink_bytes",
    "device_peak_mb",
    "seconds",
}


def states(state: Path) -> tuple[Path, dict[str, Path]]:
    """The server's state directory and the devices'."""
    return state / "server", {path.name: path for path in sorted(state.glob("device-*"))}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, object]]]:
    """One demo, for all tests that only look: its report's directory and its lines."""
    report = tmp_path_factory.mktemp("demo")
    done = command("demo", "--rounds", 5, "--devices", 4, "--report", report, "--json")
    assert done.code == 0, done.err
    assert done.said == ""
    return report, done.lines


def test_the_last_line_says_what_was_promised(
    shown: tuple[Path, list[dict[str, object]]],
) -> None:
    report, lines = shown
    summary = lines[-1]
    assert summary.keys() >= PROMISED
    assert summary["algorithm"] == "scaffold"
    assert (summary["rounds"], summary["devices"]) == (5, 4)
    assert summary["updates_counted"] == 15  # three of four in each round
    assert summary["control_gap"] == 0
    assert summary["ghosts"] == 0
    assert summary["unsettled"] == 0
    assert 0.5 < summary["accuracy"] < 1  # type: ignore[operator]
    assert 40 < summary["device_peak_mb"] < 150  # type: ignore[operator]
    assert summary["report"] == str(report / "report.html")
    assert nothing_left(str(report))


def test_devices_were_killed_and_it_left_no_trace_in_the_model(
    shown: tuple[Path, list[dict[str, object]]],
) -> None:
    _, lines = shown
    summary = lines[-1]
    kills = [line for line in lines if line["event"] == "killed"]
    assert len(kills) == summary["kills"] >= 1  # type: ignore[operator]
    assert summary["restarts"] == summary["kills"]
    assert summary["replayed"] is True


def test_the_invariant_is_read_from_the_disks_and_can_fail(
    shown: tuple[Path, list[dict[str, object]]], tmp_path: Path
) -> None:
    """One entry of one device's control, moved by one step of the grid, is a gap of one."""
    server, devices = states(shown[0] / "state")
    plan = Plan.open("wisdm")
    audit = audit_fleet(server, devices, plan)
    assert (audit.gap, audit.unsettled, audit.ghosts) == (0, 0, 0)
    altered = tmp_path / "device-2"
    altered.mkdir()
    store = Store("device-2", devices["device-2"] / "device.db")
    epoch, control = store.epoch, store.control(plan.n_train).copy()
    store.close()
    assert np.any(control)
    control[17] += 1
    copy = Store("device-2", altered / "device.db")
    assert epoch is not None
    copy.adopt(epoch, control)
    copy.close()
    assert audit_fleet(server, {**devices, "device-2": altered}, plan).gap == 1


def test_the_record_has_three_algorithms_and_everyone_s_story(
    shown: tuple[Path, list[dict[str, object]]],
) -> None:
    report, lines = shown
    run = load_run(report / "state" / "run.json")
    assert [(curve.algorithm, curve.source) for curve in run.curves] == [
        ("scaffold", "live"),
        ("fedavg", "simulated"),
        ("fedprox", "simulated"),
        ("scaffold", "simulated"),
    ]
    live, *_, replay = run.curves
    assert [r.accuracy for r in live.rounds] == [r.accuracy for r in replay.rounds]
    assert [sorted(r.counted) for r in live.rounds] == [sorted(r.counted) for r in replay.rounds]
    assert {event.kind for event in run.events} >= {"started", "trained", "counted", "killed"}
    assert sum(event.kind == "killed" for event in run.events) == lines[-1]["kills"]
    assert run.settings["weighting"] == "uniform"
    users = tasks.split(tasks.task("wisdm"), 4, 0).test_users
    assert all(str(user) in run.test for user in users)


def test_scaffold_s_uplink_is_fedavg_s(shown: tuple[Path, list[dict[str, object]]]) -> None:
    run = load_run(shown[0] / "state" / "run.json")
    totals = {c.algorithm: sum(r.uplink_bytes for r in c.rounds) for c in run.curves[1:]}
    assert totals["scaffold"] <= 1.01 * totals["fedavg"]


def test_a_second_demo_takes_the_place_of_the_first(tmp_path: Path) -> None:
    options = ("--rounds", 2, "--devices", 2, "--report", tmp_path, "--algorithm", "fedavg")
    for seed in (1, 2):
        done = command("demo", *options, "--seed", seed, "--json")
        assert done.code == 0, done.err
        summary = done.lines[-1]
        assert (summary["seed"], summary["updates_counted"]) == (seed, 4)
    run = load_run(tmp_path / "state" / "run.json")
    assert run.settings["seed"] == 2
    assert run.algorithm == "fedavg"


def interrupted(report: Path, number: signal.Signals) -> None:
    """A demo that ends by a signal in its third round leaves nothing running."""
    with Running("demo", "--report", report) as demo:
        demo.wait_for("round", 2)
        if number == signal.SIGINT:
            demo.press_ctrl_c()
        else:
            demo.signal(number)
        done = demo.end()
    assert "Traceback" not in done.err
    if number == signal.SIGINT:
        assert (done.code, done.said) == (130, "kellet: stopped by SIGINT\n")
        assert nothing_left(str(report), within=0.5)
    assert nothing_left(str(report))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_is_stopped_leaves_nothing_running_and_a_state_that_adds_up(
    tmp_path: Path, number: signal.Signals
) -> None:
    interrupted(tmp_path, number)
    server, devices = states(tmp_path / "state")
    assert len(devices) == 8
    assert audit_fleet(server, devices, Plan.open("wisdm")).gap == 0
    done = command("report", tmp_path, "--json")
    assert done.code == 0, done.err
    assert done.lines[0]["kind"] == "server"
    rows = Database(server / "ledger.db", "", 1)
    (counted,) = rows.one("select sum(counted) from updates") or (0,)
    rows.close()
    assert counted >= 12


def test_what_a_demo_refuses(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "mine.txt").touch()
    report = ("--report", tmp_path)
    command("demo", *report).failed(2, "mine.txt", "--state")
    state = ("--state", tmp_path / "other")
    command("demo", *report, *state, "--devices", 31).failed(2, "30 users")
    command("demo", *report, *state, "--rounds", 0).failed(2, "--rounds = 0")
    command("demo", *report, *state, "--seed", -1).failed(2, "--seed = -1")
    (tmp_path / "file").touch()
    command("demo", "--report", tmp_path / "file").failed(2, "file is not a directory")
    command("demo", *report, *state, "--broker", "elsewhere").failed(2, "unknown broker")
    command("demo", *report, *state, "--broker", "mqtt://127.0.0.1:1").failed(5, "refused")
    done = command("demo", *report, *state, "--task", "har", "--data-dir", tmp_path, "--json")
    done.failed(3, "--data-dir")
    assert json.loads(done.out)["error"] == "DataError"
    assert not list(tmp_path.glob("*.html"))
