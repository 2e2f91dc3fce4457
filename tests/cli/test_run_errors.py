"""``kellet run`` where something is wrong: words, an exit code, and nothing lost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.command import Done, Running, command


@pytest.fixture
def junk() -> Iterator[int]:
    """A port where something listens that is no broker: it answers everybody in HTTP."""
    listener = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import socket\n"
            "s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
            "while True:\n"
            "    c, _ = s.accept(); c.sendall(b'HTTP/1.1 400 Bad\\r\\n\\r\\n'); c.close()\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert listener.stdout is not None
    with listener:
        yield int(listener.stdout.readline())
        listener.kill()


NOWHERE = "mqtt://127.0.0.1:1"


def device(
    desk: Path, state: Path, *options: object, broker: str = NOWHERE, data: str = "mine:load"
) -> Done:
    """Run a device that does not wait long for its broker."""
    return command(
        *("run", "pi-1", "--broker", broker, "--data", data, "--state", state),
        *("--connect-timeout", 1, *options),
        cwd=desk,
    )


def test_a_broker_that_is_not_there(desk: Path, tmp_path: Path) -> None:
    device(desk, tmp_path).failed(5, "mqtt://127.0.0.1:1", "connection refused", "start the broker")


def test_a_host_that_is_not_known(desk: Path, tmp_path: Path) -> None:
    done = device(desk, tmp_path, broker="mqtt://no-such-host.invalid")
    done.failed(5, "'no-such-host.invalid' is not known", "check the name")


def test_a_port_where_something_else_listens(desk: Path, tmp_path: Path, junk: int) -> None:
    device(desk, tmp_path, broker=f"mqtt://127.0.0.1:{junk}").failed(5, f"127.0.0.1:{junk}")


@pytest.mark.parametrize(
    ("broker", "words"),
    [
        ("embedded", "a device needs its address"),
        ("localhost", "mqtt://HOST:PORT"),
        ("http://localhost", "'http'"),
        ("mqtt://localhost:99999", "1 to 65535"),
        ("mqtt://pi:secret@", "the host is missing"),
    ],
)
def test_an_address_that_cannot_be(desk: Path, tmp_path: Path, broker: str, words: str) -> None:
    done = device(desk, tmp_path, broker=broker)
    done.failed(2, words)
    assert "secret" not in done.out + done.err
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--keepalive", 0], "--keepalive = 0: it must be a whole number of seconds from 1"),
        (["--ca-file", "ca.pem"], "mqtts://"),
        (["--holdout", 1], "--holdout = 1"),
        (["--keepalive", 1.5], "'1.5' is not a whole number"),
        (["--fleet", "a b"], "fleet"),
    ],
)
def test_an_option_that_cannot_be(
    desk: Path, tmp_path: Path, options: list[object], words: str
) -> None:
    state = tmp_path / "state"
    device(desk, state, *options).failed(2, words)
    assert not state.exists()  # refused before anything was opened


@pytest.mark.parametrize(
    ("data", "words"), [("mine:laod", "did you mean load?"), ("theirs:load", "no module 'theirs'")]
)
def test_a_function_that_is_not_there(desk: Path, tmp_path: Path, data: str, words: str) -> None:
    device(desk, tmp_path, data=data).failed(2, words)


def test_a_device_s_name_that_cannot_be_a_topic(desk: Path, tmp_path: Path) -> None:
    done = command(
        *("run", "pi/1", "--broker", "mqtt://127.0.0.1:1"),
        *("--data", "mine:load", "--state", tmp_path),
        cwd=desk,
    )
    done.failed(2, "pi/1")


def test_a_state_that_is_no_directory(desk: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    device(desk, tmp_path / "file").failed(7, str(tmp_path / "file"), "--state")


def test_a_state_that_is_another_device_s(desk: Path, tmp_path: Path) -> None:
    assert device(desk, tmp_path).code == 5  # it had no broker, but it has a state now
    done = command(
        *("run", "pi-2", "--broker", "mqtt://127.0.0.1:1"),
        *("--data", "mine:load", "--state", tmp_path),
        cwd=desk,
    )
    done.failed(7, "belongs to device 'pi-1', not 'pi-2'", "a --state directory of its own")


def test_a_state_that_another_process_uses(desk: Path, tmp_path: Path, serving: str) -> None:
    with Running(
        *("run", "pi-9", "--broker", serving, "--separate-bulk"),
        *("--data", "mine:load", "--state", tmp_path),
        cwd=desk,
    ) as first:
        first.wait_for("welcome")
        device(desk, tmp_path).failed(7, "is in use", "another process")


def test_a_disk_that_is_full(desk: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for it: the write fails with an error, as it does."""
    line = f"ulimit -f 4; '{sys.executable}' -P -m kellet.sdk.cli run pi-1"
    line += f" --broker mqtt://127.0.0.1:1 --data mine:load --state '{tmp_path}'"
    done = subprocess.run(
        ["bash", "-c", line], cwd=desk, capture_output=True, text=True, check=False
    )
    Done(done.returncode, done.stdout, done.stderr).failed(7, "device.db", "cannot be")


BAD_DATA = {
    "nan_in_row_3": "x has nan in row 3, column 4",
    "wrong_shape": "x has the shape [40, 5]",
    "empty": "x has no rows",
    "labels_from_one": "count classes from 0: y - 1",
    "text": "a plan takes numbers",
    "raises": "mine:raises raised OSError",
    "leaves": "mine:leaves raised SystemExit",
    "one": "mine:one returned a ndarray",
}


def test_data_that_does_not_fit_the_plan(desk: Path, tmp_path: Path, serving: str) -> None:
    """All at once: each device is told what is wrong with its own data, and none is counted."""
    with ExitStack() as stack:
        devices = {
            name: stack.enter_context(
                Running(
                    *("run", name.replace("_", "-"), "--broker", serving, "--separate-bulk"),
                    *("--data", f"mine:{name}", "--state", tmp_path / name),
                    cwd=desk,
                )
            )
            for name in BAD_DATA
        }
        for name, running in devices.items():
            done = running.end()
            done.failed(3, BAD_DATA[name])
            assert done.lines[-1]["error"] == "DataError"
            assert not [line for line in done.lines if line["event"] == "settled"]


def test_a_fleet_that_is_not_there_is_waited_for(desk: Path, tmp_path: Path, serving: str) -> None:
    """A broker without an aggregator is no error: the device waits, and Ctrl-C ends it."""
    with Running(
        *("run", "pi-1", "--broker", serving, "--separate-bulk", "--fleet", "elsewhere"),
        *("--data", "mine:load", "--state", tmp_path),
        cwd=desk,
    ) as lonely:
        lonely.wait_for("started")
        lonely.press_ctrl_c()
        done = lonely.end()
        assert (done.code, done.said) == (130, "kellet: stopped by SIGINT\n")


def test_ctrl_c_does_not_wait_for_a_broker_that_is_away(desk: Path, tmp_path: Path) -> None:
    with Running(
        *("run", "pi-1", "--broker", NOWHERE, "--data", "mine:load", "--state", tmp_path), cwd=desk
    ) as lonely:
        lonely.wait_for("started")
        lonely.press_ctrl_c()
        began = time.monotonic()
        done = lonely.end()
    assert (done.code, done.said) == (130, "kellet: stopped by SIGINT\n")
    assert time.monotonic() - began < 5  # its patience with the broker is 30 s
