"""MQTT over bad links and through broken brokers; cases 18 and 21 to 23 of the field's faults."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable

import pytest
from support.link_lab import MqttLab, open_client, wait_until

from kellet.sdk.errors import LinkError
from kellet.sdk.transport.base import Disconnected
from kellet.sdk.transport.mqtt import MqttTuning
from kellet.server.brokers import BrokerHandle

# The broker goes.


def test_the_link_works_after_each_of_ten_broker_deaths(broker: BrokerHandle) -> None:
    """Case 18: killed from outside or restarted, nothing but the clients' own state survives."""
    server = open_client(broker.url, "server", subscriptions=["d/+/req"])
    device = open_client(broker.url, "device", subscriptions=["pub/round"])
    with server.transport, device.transport:
        for death in range(10):
            server.wait_connected(death + 1)
            device.wait_connected(death + 1)
            assert server.transport.publish("pub/round", b"round %d" % death, retain=True)
            assert device.wait_payloads(death + 1)[-1] == b"round %d" % death
            assert device.transport.publish("d/pi/req", b"join %d" % death)
            assert server.wait_payloads(death + 1)[-1] == b"join %d" % death
            assert wait_until(broker.alive)  # clients may see it before its supervisor does
            if death % 2:
                broker.restart()
            else:
                assert broker.pid is not None
                os.kill(broker.pid, signal.SIGKILL)
            server.wait_disconnected(death + 1)
        server.wait_connected(11)
        assert device.kinds[:4] == ["Connected", "Disconnected", "Connected", "Disconnected"]


DYING_CLIENT = """
import sys, time
from kellet.sdk.transport.base import Will
from kellet.sdk.transport.mqtt import MqttTransport
url, bulk = sys.argv[1], sys.argv[2] == "bulk"
will = Will("d/pi/state", b"gone")
link = MqttTransport(url, "pi", lambda event: None, will=will, separate_bulk=bulk)
link.wait_connected()
link.publish("d/pi/state", b"here", retain=True)
time.sleep(60)
"""


@pytest.mark.parametrize("connections", ["one", "bulk"])
def test_the_will_of_a_killed_process(broker: BrokerHandle, connections: str) -> None:
    server = open_client(broker.url, "server", subscriptions=["d/+/state"])
    with server.transport:
        server.wait_connected()
        command = [sys.executable, "-c", DYING_CLIENT, broker.url, connections]
        with subprocess.Popen(command) as process:
            assert server.wait_payloads(1, timeout=20) == [b"here"]
            process.kill()
        assert server.wait_payloads(2) == [b"here", b"gone"]


# The link goes.


def test_nothing_is_queued_while_offline(shared: BrokerHandle) -> None:
    """Case 23: 200 MB of publications into a dead link leave memory and the next one alone."""
    with MqttLab(shared.url) as lab:
        server = lab.client("server", ["d/#"])
        device = lab.client("device")
        lab.cut(device)
        payload = bytes(10_000)
        tracemalloc.start()
        try:
            for _ in range(20_000):
                assert not device.transport.publish(lab.topic("d/pi/req"), payload)
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert grown < 1 << 20
        assert device.transport.unacknowledged == 0
        lab.mend(device)
        device.wait_connected(times=2)
        device.transport.publish(lab.topic("d/pi/req"), b"fresh")
        lab.settle()
        assert server.payloads == [b"fresh"]


def test_bytes_in_flight_are_bounded_and_control_keeps_its_room(shared: BrokerHandle) -> None:
    tuning = MqttTuning(
        max_inflight_bytes=1 << 20, bulk_window_bytes=256 << 10, backoff=(0.05, 0.5)
    )
    with MqttLab(shared.url, tuning=tuning, keepalive=60) as lab:
        device = lab.client("device")
        proxy = lab.proxy(device)
        proxy.black_hole = True
        part = bytes(60_000)
        sent = 0
        while device.transport.publish(lab.topic("up"), part, bulk=True):
            sent += 1
        assert sent == 4  # 4 x 60,000 < 256 KiB < 5 x 60,000
        for _ in range(1000):
            assert device.transport.publish(lab.topic("req"), b"hello")
        while device.transport.publish(lab.topic("req"), part):
            sent += 1
        assert (1 << 20) - 61_000 < device.transport.unacknowledged <= 1 << 20
        proxy.black_hole = False
        proxy.cut()  # what was swallowed is lost, so the stream cannot go on
        device.wait_connected(times=2)
        assert device.transport.unacknowledged == 0
        assert device.transport.publish(lab.topic("up"), part, bulk=True)


def test_one_payload_above_the_window_still_passes(shared: BrokerHandle) -> None:
    tuning = MqttTuning(max_inflight_bytes=1000, bulk_window_bytes=1000)
    with MqttLab(shared.url, tuning=tuning) as lab:
        server = lab.client("server", ["up"])
        device = lab.client("device")
        assert device.transport.publish(lab.topic("up"), bytes(50_000), bulk=True)
        server.wait_payloads(1)
        assert wait_until(lambda: device.transport.unacknowledged == 0)
        assert device.transport.publish(lab.topic("up"), bytes(50_000), bulk=True)
        server.wait_payloads(2)


def test_lost_acknowledgements_hold_the_window_until_the_link_is_renewed(
    shared: BrokerHandle,
) -> None:
    with MqttLab(shared.url) as lab:
        server = lab.client("server", ["up"])
        device = lab.client("device")
        proxy = lab.proxy(device)
        proxy.drop_puback = True
        for _ in range(3):
            assert device.transport.publish(lab.topic("up"), b"part")
        assert len(server.wait_payloads(3)) == 3
        assert wait_until(lambda: proxy.dropped_pubacks == 3)
        assert device.transport.unacknowledged > 0
        proxy.drop_puback = False
        proxy.cut()
        device.wait_connected(times=2)
        assert device.transport.unacknowledged == 0
        lab.settle()
        assert len(server.payloads) == 3  # a new connection repeats nothing by itself


def test_a_silent_link_is_noticed_within_two_keepalives(shared: BrokerHandle) -> None:
    with MqttLab(shared.url, keepalive=1) as lab:
        device = lab.client("device")
        lab.proxy(device).black_hole = True
        began = time.monotonic()
        device.wait_disconnected(timeout=6)
        assert time.monotonic() - began < 4
        lab.proxy(device).black_hole = False
        device.wait_connected(times=2)


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_slow_link_outlives_its_keepalive(shared: BrokerHandle, direction: str) -> None:
    """Case 21: three parts take more than two keepalives, and the connection stays."""
    with MqttLab(shared.url, keepalive=1) as lab:
        server = lab.client("server", ["part"])
        device = lab.client("device", ["part"] if direction == "down" else [])
        lab.proxy(device).rate_up = lab.proxy(device).rate_down = 30_000
        sender, receiver = (device, server) if direction == "up" else (server, device)
        parts = [bytes([number]) * 25_000 for number in range(3)]
        for part in parts:
            assert sender.transport.publish(lab.topic("part"), part, bulk=True)
        assert receiver.wait_payloads(3, timeout=30) == parts
        assert device.kinds == ["Connected"]


def test_a_busy_process_is_not_declared_dead(shared: BrokerHandle) -> None:
    """Case 21: training for three keepalives while nothing is sent."""
    with MqttLab(shared.url, keepalive=1) as lab:
        server = lab.client("server", ["d/+/state"])
        device = lab.client("device", will="d/pi/state")
        until = time.monotonic() + 3.2
        while time.monotonic() < until:
            sum(range(1000))  # holds the interpreter, as a training loop does
        assert device.kinds == ["Connected"]
        assert server.received == []


@pytest.mark.parametrize("cut_after", [30_000, 100_000])
def test_a_transfer_cut_in_the_middle_is_whole_or_absent(
    shared: BrokerHandle, cut_after: int
) -> None:
    with MqttLab(shared.url) as lab:
        server = lab.client("server", ["up"])
        device = lab.client("device")
        lab.proxy(device).cut_after = cut_after
        part = bytes(range(250)) * 200
        for _ in range(4):
            device.transport.publish(lab.topic("up"), part, bulk=True)
        device.wait_disconnected()
        lab.settle()
        assert all(payload == part for payload in server.payloads)
        assert len(server.payloads) <= cut_after // 50_000


# The second connection.


def test_parts_travel_on_a_connection_of_their_own(shared: BrokerHandle) -> None:
    with MqttLab(shared.url, separate_bulk=True) as lab:
        server = lab.client("server", ["#"])
        device = lab.client("device")
        device.transport.wait_connected()
        proxy = lab.proxy(device)
        assert proxy.connections == 2
        assert device.transport.publish(lab.topic("req"), b"control")
        assert device.transport.publish(lab.topic("up"), b"part", bulk=True)
        assert sorted(server.wait_payloads(2)) == [b"control", b"part"]
        lab.cut(device)
        lab.mend(device)
        device.wait_connected(times=2)
        device.transport.wait_connected(patient=True)
        assert device.transport.publish(lab.topic("up"), b"again", bulk=True)
        assert sorted(server.wait_payloads(3)) == [b"again", b"control", b"part"]
        assert device.kinds == ["Connected", "Disconnected", "Connected"]


def test_the_link_is_lost_with_the_connection_for_parts(shared: BrokerHandle) -> None:
    """Parts that were under way are gone: whoever sent them has to hear of it, at once."""
    with MqttLab(shared.url, separate_bulk=True) as lab:
        server = lab.client("server", ["#"])
        device = lab.client("device", will="d/pi/state")
        device.transport.wait_connected()
        proxy = lab.proxy(device)
        proxy.cut_after = 50_000  # the other connection stays far below
        assert device.transport.publish(lab.topic("up"), bytes(60_000), bulk=True)
        device.wait_disconnected()
        proxy.cut_after = None
        device.wait_connected(times=2)
        device.transport.wait_connected(patient=True)
        assert device.transport.publish(lab.topic("up"), b"again", bulk=True)
        assert server.wait_payloads(1) == [b"again"]  # and no will: this client took its leave
        lab.settle()
        assert device.kinds == ["Connected", "Disconnected", "Connected"]


# Brokers that cannot be reached.


def dead_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (lambda: f"mqtt://127.0.0.1:{dead_port()}", r"connection refused - start the broker"),
        (lambda: "mqtt://no-such-host.invalid", r"the name 'no-such-host.invalid' is not known"),
    ],
)
def test_an_unreachable_broker_is_reported_at_once(url: Callable[[], str], why: str) -> None:
    client = open_client(url(), "lost")
    with client.transport:
        began = time.monotonic()
        with pytest.raises(LinkError, match=why) as caught:
            client.transport.wait_connected(timeout=20)
        assert time.monotonic() - began < 5
        assert caught.value.exit_code == 5
        assert not client.transport.publish("x", b"")
        client.wait_disconnected()
        time.sleep(0.5)  # several attempts later it was still told once
        assert client.kinds == ["Disconnected"]


def test_patience_waits_for_a_broker_that_comes_later(embedded: BrokerHandle) -> None:
    with MqttLab(embedded.url) as lab:
        device = lab.make("late-broker", [], None, None)
        lab.stack.callback(device.transport.close)
        lab.proxy(device).refuse = True
        threading.Timer(0.5, lambda: setattr(lab.proxy(device), "refuse", False)).start()
        device.transport.wait_connected(timeout=10, patient=True)


def test_a_server_that_never_answers_is_reported_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
        tuning = MqttTuning(connect_timeout=0.5, backoff=(0.05, 0.1))
        client = open_client(url, "ignored", tuning=tuning)
        with client.transport, pytest.raises(LinkError, match="does not answer as a broker should"):
            client.transport.wait_connected(timeout=10)


def test_a_wait_that_times_out_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"mqtt://127.0.0.1:{listener.getsockname()[1]}"
        client = open_client(url, "waits")
        with client.transport, pytest.raises(LinkError, match="no answer in time"):
            client.transport.wait_connected(timeout=0.2)


def test_disconnected_tells_the_reason(shared: BrokerHandle) -> None:
    with MqttLab(shared.url) as lab:
        device = lab.client("device")
        lab.cut(device)
        reasons = [event.reason for event in device.events if isinstance(event, Disconnected)]
        assert reasons == ["the connection was lost"]
