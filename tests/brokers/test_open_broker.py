"""Brokers of our own: where they listen, that they come back, and that they go with us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.link_lab import wait_until

from kellet.sdk.errors import ExtraMissing, LinkError, StorageError, UsageError
from kellet.server.brokers import (
    BrokerHandle,
    TlsFiles,
    child,
    embedded,
    mosquitto,
    open_broker,
)

HAS_MOSQUITTO = os.path.exists("/usr/sbin/mosquitto") or any(
    os.path.exists(os.path.join(folder, "mosquitto")) for folder in os.get_exec_path()
)
needs_mosquitto = pytest.mark.skipif(not HAS_MOSQUITTO, reason="mosquitto is not installed")
OURS = ["embedded", pytest.param("mosquitto", marks=needs_mosquitto)]


@pytest.fixture(params=OURS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerHandle]:
    with open_broker(request.param, state_dir=tmp_path / "a folder") as opened:
        yield opened


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def gone(pid: int) -> bool:
    """No such process, or a zombie that its new parent has not reaped yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_serves_this_machine_alone(broker: BrokerHandle) -> None:
    assert broker.pid is not None
    listening = [
        each.laddr
        for each in psutil.Process(broker.pid).net_connections(kind="inet")
        if each.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}
    assert {address.port for address in listening} == {
        port_of(broker.url),
        port_of(broker.url_v311),
    }


def test_it_delivers_and_says_what_it_takes(broker: BrokerHandle) -> None:
    assert broker.alive()
    assert broker.healthy()
    assert 0 < broker.ping() < 5
    memory = broker.memory()
    assert memory is not None
    assert 1 << 20 < memory < 100 << 20
    if broker.kind == "embedded":
        assert (broker.part_size, broker.separate_bulk) == (65_536, True)
        assert broker.admission_bytes == 8 << 20
    else:
        assert (broker.part_size, broker.separate_bulk) == (65_536, False)


def test_restart_keeps_the_port(broker: BrokerHandle) -> None:
    first, url = broker.pid, broker.url
    broker.restart()
    assert broker.pid not in (None, first)
    assert broker.url == url
    assert broker.starts == 2
    assert broker.healthy()


def test_one_that_is_killed_comes_back(broker: BrokerHandle) -> None:
    for death in range(3):
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGKILL)
        assert wait_until(lambda count=death + 2: broker.starts == count)  # type: ignore[misc]
        assert broker.healthy()


def test_one_that_hangs_is_not_healthy(broker: BrokerHandle) -> None:
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        assert broker.alive()  # the process is there, which proves little
        assert not broker.healthy(timeout=0.5)
        with pytest.raises(LinkError, match="no answer in time"):
            broker.ping(timeout=0.3)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert broker.healthy()


def test_close_stops_it_and_frees_the_port(broker: BrokerHandle) -> None:
    pid = broker.pid
    assert pid is not None
    broker.close()
    assert gone(pid)
    assert not broker.alive()
    assert (broker.pid, broker.memory()) == (None, None)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port_of(broker.url))) != 0
    broker.close()


PARENT = """
import sys, threading, time
from kellet.server.brokers import open_broker
opened = []
opener = threading.Thread(
    target=lambda: opened.append(open_broker(sys.argv[1], state_dir=sys.argv[2]))
)
opener.start()
opener.join()  # the thread that opened it ends, and the broker must not
time.sleep(0.3)
print(opened[0].pid, opened[0].healthy(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("spec", OURS)
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(spec: str, way: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, spec, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, healthy = parent.stdout.readline().split()
        assert healthy == "True"
        assert not gone(int(pid))
        parent.send_signal(way)
        parent.wait(10)
    assert wait_until(lambda: gone(int(pid)), timeout=5)


def test_ctrl_c_in_the_terminal_is_not_for_the_broker(broker: BrokerHandle) -> None:
    assert broker.pid is not None
    assert os.getpgid(broker.pid) != os.getpgrp()


def test_a_free_port_that_is_lost_to_another_is_chosen_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = child._choose
    with socket.create_server(("127.0.0.1", 0)) as quicker:
        unlucky = [quicker.getsockname()[1]]

        def lose_once(addresses: list[tuple[str, int | None]]) -> list[int]:
            ports = choose(addresses)
            return [unlucky.pop(), *ports[1:]] if unlucky else ports

        monkeypatch.setattr(child, "_choose", lose_once)
        with open_broker("embedded", state_dir=tmp_path) as broker:
            assert broker.healthy()
    assert unlucky == []


def test_a_port_may_be_given_and_one_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        for spec in ("embedded", "mosquitto") if HAS_MOSQUITTO else ("embedded",):
            with pytest.raises(LinkError, match=f"port {port} is taken"):
                open_broker(spec, state_dir=tmp_path, port=port)
    with open_broker("embedded", state_dir=tmp_path, port=port) as broker:
        assert broker.url == f"mqtt://127.0.0.1:{port}"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "::1", ""])
def test_the_embedded_broker_refuses_the_network(host: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot tell clients apart.*--broker mosquitto"):
        open_broker("embedded", state_dir=tmp_path, host=host)


def test_the_embedded_brokers_numbers() -> None:
    """Loopback and payload are always set; segments hold twice what admission lets through."""
    for admission in (1 << 20, 8 << 20, 64 << 20):
        text = embedded.config_text(1883, 1884, admission_bytes=admission)
        values = dict(
            line.split(" = ") for line in text.splitlines() if " = " in line and "[" not in line
        )
        size, count = int(values["max_segment_size"]), int(values["max_segment_count"])
        assert (count - 1) * size >= 2 * admission
        assert text.count("max_payload_size = 1049600\n") == 2
        assert text.count('listen = "127.0.0.1:') == text.count("listen = ") == 2


def test_without_iotcore_the_repair_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "iotcore", None)
    with pytest.raises(ExtraMissing, match=r'pip install "kellet\[server\]"'):
        open_broker("embedded", state_dir=tmp_path)


def test_without_mosquitto_the_repair_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mosquitto, "ELSEWHERE", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LinkError, match="apt install mosquitto"):
        open_broker("mosquitto", state_dir=tmp_path)


@needs_mosquitto
def test_one_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    threads = threading.active_count()
    with pytest.raises(LinkError, match=r"does not start .*certificate"):
        open_broker("mosquitto", state_dir=tmp_path, tls=TlsFiles(empty, empty))
    assert threading.active_count() == threads


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "broker").write_text("a file stands there")
    with pytest.raises(StorageError, match="cannot write to"):
        open_broker("embedded", state_dir=tmp_path)


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("emqx", {}, "unknown broker 'emqx'"),
        ("", {}, "unknown broker"),
        ("http://x", {}, "unknown scheme"),
        ("embedded", {"users": {"a": "b"}}, "neither users nor TLS"),
        ("embedded", {"port": 70_000}, "port 70000"),
        ("embedded", {"admission_bytes": 0}, "admission_bytes 0"),
        ("mosquitto", {"part_size": 5}, "part_size 5"),
        ("mosquitto", {"host": "0.0.0.0"}, "without users"),
        ("mqtt://x", {"port": 1884}, "a broker that is started here"),
        ("mqtt://x", {"users": {"a": "b"}}, "a broker that is started here"),
    ],
)
def test_options_that_do_not_fit(
    spec: str, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        open_broker(spec, state_dir=tmp_path, **options)  # type: ignore[arg-type]


def test_an_external_broker_is_left_alone(tmp_path: Path) -> None:
    with open_broker("embedded", state_dir=tmp_path) as ours:
        with open_broker(ours.url, state_dir=tmp_path, part_size=32_768) as broker:
            assert broker.kind == "external"
            assert (broker.pid, broker.memory(), broker.starts) == (None, None, 0)
            assert (broker.part_size, broker.separate_bulk) == (32_768, False)
            assert broker.alive()
            with pytest.raises(UsageError, match="not ours"):
                broker.restart()
        assert ours.healthy()
    assert not broker.alive()


def test_the_credentials_of_an_external_broker_stay_out_of_sight(tmp_path: Path) -> None:
    with open_broker("mqtts://me:secret@broker.example", state_dir=tmp_path) as broker:
        assert broker.url == "mqtts://broker.example:8883"
        assert (broker.username, broker.password) == ("me", "secret")
        assert "secret" not in repr(broker)
