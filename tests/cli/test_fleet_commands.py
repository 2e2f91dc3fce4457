"""``kellet server`` and ``kellet run`` together, as processes of the command."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.command import Done, Running, command
from support.fleet import needs_mosquitto

from kellet.server.commands.broker import BrokerOptions

ROUNDS = ("--rounds", 3, "--target", 2, "--min-devices", 2, "--local-steps", 4)


def device(desk: Path, state: Path, name: str, broker: str) -> Running:
    return Running(
        *("run", name, "--separate-bulk", "--until-finished"),
        *("--data", "mine:load", "--state", state / name),
        cwd=desk,
        env={"KELLET_BROKER": broker},
    )


def test_a_run_from_the_first_device_to_the_model(desk: Path, tmp_path: Path) -> None:
    with Running(
        *("server", "toy.kplan", "--state", tmp_path / "server", "--test", "mine:test", *ROUNDS),
        cwd=desk,
    ) as server:
        serving = server.wait_for("serving")
        assert serving["algorithm"]["name"] == "scaffold"
        assert serving["algorithm"]["local_steps"] == 4
        broker = serving["broker"]
        with device(desk, tmp_path, "a", broker) as a, device(desk, tmp_path, "b", broker) as b:
            ends = [a.end(), b.end()]
            done = server.end()
    for end in ends:
        assert end.code == 0
        settled = [line for line in end.lines if line["event"] == "settled"]
        assert [line["round"] for line in settled] == [1, 2, 3]
        assert all(line["counted"] and 20 < line["peak_mb"] < 150 for line in settled)
    assert done.code == 0
    check_summary(done, tmp_path / "server")


def check_summary(done: Done, state: Path) -> None:
    """The server's events and its last line, and the model that it left."""
    rounds = [line for line in done.lines if line["event"] == "round"]
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert all(sorted(line["counted"]) == ["a", "b"] for line in rounds)
    evaluated = [line for line in done.lines if line["event"] == "evaluated"]
    summary = done.lines[-1]
    assert (
        summary.items()
        >= {
            "event": "summary",
            "algorithm": "scaffold",
            "rounds": 3,
            "devices": 2,
            "updates_counted": 6,
            "updates_refused": 0,
            "accuracy": evaluated[-1]["accuracy"],
            "loss": evaluated[-1]["loss"],
            "digest": rounds[-1]["model"],
            "model": str(state / "model.onnx"),
        }.items()
    )
    assert summary["uplink_bytes"] > 6 * 4 * 21
    assert summary["downlink_bytes"] > 0
    assert summary["seconds"] > 0
    session = onnxruntime.InferenceSession(state / "model.onnx")
    (scores,) = session.run(None, {"batch": np.zeros((2, 6), np.float32)})
    assert scores.shape == (2, 3)
    shown = command("plan", "show", state / "model.onnx", "--json").lines[0]
    assert shown["inputs"][0]["name"] == "batch"
    assert shown["inputs"][0]["shape"][1:] == [6]
    assert shown["outputs"] == [{**shown["outputs"][0], "name": "scores"}]


def test_a_server_that_is_killed_goes_on_at_the_same_address(desk: Path, tmp_path: Path) -> None:
    state = tmp_path / "server"
    options = ("server", "toy.kplan", "--state", state, *ROUNDS)
    with Running(*options, cwd=desk) as first:
        broker = first.wait_for("serving")["broker"]
        with device(desk, tmp_path, "a", broker) as a:
            first.wait_for("enrolled")
            first.signal(signal.SIGKILL)
            first.end()
            with Running(*options, cwd=desk) as second, device(desk, tmp_path, "b", broker) as b:
                assert second.wait_for("serving")["broker"] == broker
                assert (a.end().code, b.end().code) == (0, 0)
                summary = second.end().lines[-1]
    assert (summary["rounds"], summary["updates_counted"]) == (3, 6)


def test_a_finished_server_goes_on_where_more_rounds_are_asked_for(
    desk: Path, tmp_path: Path
) -> None:
    state = tmp_path / "server"
    options = ("server", "toy.kplan", "--state", state, "--target", 1)
    for total in (1, 2):
        with Running(*options, "--rounds", total, cwd=desk) as server:
            serving = server.wait_for("serving")
            assert serving["resumed_after_round"] == total - 1
            with device(desk, tmp_path, "a", serving["broker"]) as a:
                assert a.end().code == 0
                assert server.end().lines[-1]["rounds"] == total


def test_ctrl_c_leaves_both_sides_whole(desk: Path, tmp_path: Path) -> None:
    """The server in the middle of a round, the device with a round behind it: both go on."""
    options = ("server", "toy.kplan", "--state", tmp_path / "server", *ROUNDS)
    with Running(*options, cwd=desk) as server:
        broker = server.wait_for("serving")["broker"]
        with device(desk, tmp_path, "a", broker) as a, device(desk, tmp_path, "b", broker) as b:
            a.wait_for("settled")
            for running in (a, b, server):
                running.press_ctrl_c()
            ends = [a.end(), b.end(), server.end()]
    assert [end.code for end in ends] in ([130, 130, 130], [130, 130, 0], [0, 0, 0], [130, 0, 0])
    assert not [end for end in ends if "Traceback" in end.err]
    with Running(*options, cwd=desk) as server:
        broker = server.wait_for("serving")["broker"]
        with device(desk, tmp_path, "a", broker) as a, device(desk, tmp_path, "b", broker) as b:
            assert (a.end().code, b.end().code) == (0, 0)
            summary = server.end().lines[-1]
    assert (summary["rounds"], summary["updates_counted"]) == (3, 6)


def test_sigterm_ends_a_server_that_waits(desk: Path, tmp_path: Path) -> None:
    with Running("server", "toy.kplan", "--state", tmp_path / "server", cwd=desk) as server:
        server.wait_for("waiting")
        server.signal(signal.SIGTERM)
        done = server.end()
    assert (done.code, done.said) == (143, "kellet: stopped by SIGTERM\n")


@needs_mosquitto
def test_with_users_mosquitto_serves_other_machines(desk: Path, tmp_path: Path) -> None:
    (tmp_path / "users").write_text("a:secret\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with Running(
        *("server", "toy.kplan", "--state", tmp_path / "server", "--broker", "mosquitto"),
        *("--users", tmp_path / "users", "--port", port),
        cwd=desk,
    ) as server:
        serving = server.wait_for("serving")
        assert serving["broker"] == f"mqtt://{socket.gethostname()}:{port}"
        address = f"mqtt://DEVICE:PASSWORD@{socket.gethostname()}:{port}"
        assert serving["join"] == (
            f"kellet run DEVICE --broker {address} --data MODULE:FUNCTION --state DIR"
        )
        config = (tmp_path / "server" / "broker" / "mosquitto.conf").read_text()
        assert f"\nlistener {port} 0.0.0.0\n" in config


def test_the_usual_ports_are_for_brokers_with_users(tmp_path: Path) -> None:
    users, cert = tmp_path / "users", tmp_path / "cert.pem"
    both = BrokerOptions(users=users, tls_cert=cert, tls_key=cert)
    assert BrokerOptions(users=users).address("mosquitto", tmp_path) == ("0.0.0.0", 1883)
    assert both.address("mosquitto", tmp_path) == ("0.0.0.0", 8883)
    given = BrokerOptions(users=users, host="10.0.0.1", port=5)
    assert given.address("mosquitto", tmp_path) == ("10.0.0.1", 5)
    assert BrokerOptions().address("mosquitto", tmp_path) == (None, None)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--deadline", "inf"], 2, "--deadline = inf"),
        (["--deadline", "nan"], 2, "--deadline = nan"),
        (["--over-select", "1e400"], 2, "--over-select = inf"),
        (["--connect-timeout", "nan"], 2, "--connect-timeout = nan"),
        (["--min-devices", "0"], 2, "--min-devices = 0"),
        (["--broker", "mosquitto", "--users", "nobody"], 2, "it names no device"),
        (["--batch-size", str(2**31)], 2, "at most 2147483647"),
        (["--test", "mine:leaves"], 3, "mine:leaves raised SystemExit"),
        (["--digest", "ab" * 32], 4, "SHA-256"),
        (["--target", "0"], 2, "target = 0"),
        (["--host", "0.0.0.0"], 2, "the embedded broker does not listen on 0.0.0.0"),
        (["--algorithm", "fedavg", "--mu", "1"], 2, "fedavg has no 'mu'"),
        (["--option", "I", "--delta-c", "derived"], 2, "a derived delta_c under option I"),
        (["--test", "mine:one"], 3, "mine:one"),
        (["--tls-cert", "cert.pem"], 2, "give both"),
    ],
)
def test_what_a_server_refuses(
    desk: Path, tmp_path: Path, options: list[str], code: int, words: str
) -> None:
    command("server", "toy.kplan", "--state", tmp_path, *options, cwd=desk).failed(code, words)


def test_a_state_without_a_name_is_not_the_working_directory(desk: Path) -> None:
    done = command("server", "toy.kplan", "--state", "", cwd=desk)
    done.failed(2, "--state", "the name is empty")
    assert not (desk / "ledger.db").exists()


def test_a_state_of_another_plan_is_refused(desk: Path, tmp_path: Path) -> None:
    state = tmp_path / "server"
    with Running("server", "toy.kplan", "--state", state, cwd=desk) as server:
        server.wait_for("waiting")
        server.signal(signal.SIGTERM)
        server.end()
    command("server", "wisdm", "--state", state, cwd=desk).failed(
        8, "this state belongs to plan", "another --state directory"
    )
