"""Versions, limits, refusals: what the broker's answers make of a connection."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt
import pytest
from support.link_lab import MqttLab, open_client, wait_until
from support.scripted_broker import CONNACK_5, ScriptedBroker, read_packet

from kellet.sdk.errors import LinkError, UsageError
from kellet.sdk.transport.base import Connected, Disconnected, Will
from kellet.sdk.transport.mqtt import MqttTransport, MqttTuning
from kellet.sdk.transport.settings import check_paho
from kellet.server.brokers import BrokerHandle

LEVEL = 7  # where CONNECT says the version: type, "\0\4MQTT", then it
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")


# Versions.


def test_a_broker_that_hangs_up_on_version_5_gets_3_1_1(embedded: BrokerHandle) -> None:
    """rumqttd's listener for 3.1.1 closes the connection without a word."""
    client = open_client(embedded.url_v311, subscriptions=["x"])
    with client.transport:
        client.transport.wait_connected(timeout=5)
        client.transport.publish("x", b"through")
        assert client.wait_payloads(1) == [b"through"]
        assert client.kinds == ["Connected"]


@pytest.mark.parametrize("answer", [bytes([0x20, 3, 0, 0x84, 0]), bytes([0x20, 2, 0, 1])])
def test_a_broker_that_refuses_version_5_gets_3_1_1(answer: bytes) -> None:
    """The refusal in MQTT 5's own form, and in that of a broker that knows 3.1.1 alone."""

    def script(connection: socket.socket, connect: bytes) -> None:
        if connect[LEVEL] == 5:
            connection.sendall(answer)
        else:
            connection.sendall(bytes([0x20, 2, 0, 0]))
            read_packet(connection)

    with ScriptedBroker(script) as broker:
        client = open_client(broker.url)
        with client.transport:
            client.transport.wait_connected(timeout=5)
        assert [connect[LEVEL] for connect in broker.connects] == [5, 4]
        assert client.kinds == ["Connected"]


def test_version_5_alone_is_final_where_it_is_refused() -> None:
    answer = bytes([0x20, 3, 0, 0x84, 0])
    with ScriptedBroker(lambda connection, _: connection.sendall(answer)) as broker:
        client = open_client(broker.url, protocol="5")
        with client.transport, pytest.raises(LinkError, match="does not speak this version"):
            client.transport.wait_connected(timeout=5)
        assert [connect[LEVEL] for connect in broker.connects] == [5]
        assert client.kinds == ["Refused"]


def test_a_broker_that_speaks_neither_version_is_reported_and_tried_again() -> None:
    def script(connection: socket.socket, connect: bytes) -> None:
        connection.sendall(bytes([0x20, 3, 0, 0x84, 0] if connect[LEVEL] == 5 else [0x20, 2, 0, 1]))

    with ScriptedBroker(script) as broker:
        client = open_client(broker.url)
        with client.transport:
            with pytest.raises(LinkError, match="did not admit the client"):
                client.transport.wait_connected(timeout=5)
            assert wait_until(lambda: len(broker.connects) >= 4)
        assert [connect[LEVEL] for connect in broker.connects[:4]] == [5, 4, 5, 4]
        assert client.kinds == ["Disconnected"]


def test_a_version_that_worked_is_kept_when_the_broker_hangs_up() -> None:
    answers = iter([CONNACK_5, b"", b"", CONNACK_5])

    def script(connection: socket.socket, connect: bytes) -> None:
        answer = next(answers)
        if answer:
            connection.sendall(answer)
            time.sleep(0.1)

    with ScriptedBroker(script) as broker:
        client = open_client(broker.url)
        with client.transport:
            client.wait_connected(times=2)
        assert [connect[LEVEL] for connect in broker.connects[:4]] == [5, 5, 5, 5]


def test_each_connection_starts_clean_with_a_retained_will_of_qos_1() -> None:
    def script(connection: socket.socket, connect: bytes) -> None:
        connection.sendall(CONNACK_5 if connect[LEVEL] == 5 else bytes([0x20, 2, 0, 0]))
        read_packet(connection)

    for protocol in ("5", "3.1.1"):
        with ScriptedBroker(script) as broker:
            will = Will("d/pi/state", b"gone")
            client = open_client(broker.url, protocol=protocol, will=will, keepalive=7)
            with client.transport:
                client.wait_connected()
            flags, keepalive = struct.unpack("!BH", broker.connects[0][LEVEL + 1 : LEVEL + 4])
            assert flags == 0b0010_1110  # will retained, QoS 1, will, clean
            assert keepalive == 7


def test_a_client_that_closes_before_it_is_admitted_still_takes_its_leave() -> None:
    """Otherwise the broker, which may have admitted it, publishes its will."""
    packets: list[int] = []

    def script(connection: socket.socket, connect: bytes) -> None:
        time.sleep(0.3)
        connection.sendall(CONNACK_5)
        while True:
            packets.append(read_packet(connection)[0] & 0xF0)

    with ScriptedBroker(script) as broker:
        client = open_client(broker.url, will=Will("state", b"gone"))
        assert wait_until(lambda: len(broker.connects) == 1)
        client.transport.close()
        assert client.events == []
        assert wait_until(lambda: 0xE0 in packets)


# Refusals.


@pytest.mark.parametrize(
    ("version", "code", "text"),
    [
        ("5", 0x86, "bad user name or password"),
        ("5", 0x87, "not authorized"),
        ("5", 0x85, "client identifier not valid"),
        ("3.1.1", 4, "bad user name or password"),
        ("3.1.1", 5, "not authorized"),
    ],
)
def test_refused_credentials_are_final(version: str, code: int, text: str) -> None:
    answer = bytes([0x20, 3, 0, code, 0] if version == "5" else [0x20, 2, 0, code])
    with ScriptedBroker(lambda connection, _: connection.sendall(answer)) as broker:
        client = open_client(broker.url, protocol=version)
        with client.transport:
            with pytest.raises(LinkError, match=f"{text} - check user, password"):
                client.transport.wait_connected(timeout=5, patient=True)
            assert client.wait_refused().reason == text
            time.sleep(0.3)
        assert len(broker.connects) == 1


@pytest.mark.parametrize(("version", "code"), [("5", 0x88), ("5", 0x97), ("3.1.1", 3)])
def test_a_broker_that_is_busy_is_tried_again(version: str, code: int) -> None:
    first = bytes([0x20, 3, 0, code, 0] if version == "5" else [0x20, 2, 0, code])
    answers = iter([first, CONNACK_5 if version == "5" else bytes([0x20, 2, 0, 0])])

    def script(connection: socket.socket, connect: bytes) -> None:
        connection.sendall(next(answers))
        read_packet(connection)

    with ScriptedBroker(script) as broker:
        client = open_client(broker.url, protocol=version)
        with client.transport:
            client.transport.wait_connected(timeout=5, patient=True)
        assert client.kinds == ["Disconnected", "Connected"]


def test_a_subscription_that_is_refused_is_final() -> None:
    def script(connection: socket.socket, connect: bytes) -> None:
        connection.sendall(CONNACK_5)
        subscribe = read_packet(connection)
        connection.sendall(bytes([0x90, 4, *subscribe[1:3], 0, 0x87]))
        read_packet(connection)

    with ScriptedBroker(script) as broker:
        client = open_client(broker.url, subscriptions=["kellet/1/f/pub/round"])
        with client.transport:
            reason = client.wait_refused().reason
        assert "does not let it subscribe to kellet/1/f/pub/round" in reason
        assert client.kinds == ["Refused"]


def test_the_older_of_two_clients_with_one_id_is_fenced_off() -> None:
    def script(connection: socket.socket, connect: bytes) -> None:
        connection.sendall(CONNACK_5 + bytes([0xE0, 2, 0x8E, 0]))

    with ScriptedBroker(script) as broker:
        client = open_client(broker.url, "twin")
        with client.transport:
            assert "another client with the id 'twin'" in client.wait_refused().reason
        assert client.kinds == ["Connected", "Refused"]
        assert len(broker.connects) == 1


@pytest.mark.parametrize("offer", [bytes([0x24, 0]), bytes([0x25, 0])])
def test_a_broker_without_qos_1_or_retained_messages_is_refused(offer: bytes) -> None:
    answer = bytes([0x20, 5, 0, 0, 2]) + offer
    with ScriptedBroker(lambda connection, _: connection.sendall(answer)) as broker:
        client = open_client(broker.url)
        with client.transport:
            assert "no QoS 1, or no retained" in client.wait_refused().reason


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize(
    "noise",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes([0x20, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]),
        bytes([0x20, 1, 0]),
        bytes([0x20, 4, 0, 0, 9, 9]),
        bytes([0xFF] * 40),
        bytes([0x30, 5, 0, 9, 65, 66, 67]),
        bytes([0x90, 1, 0]),
        bytes([0x20, 3, 0, 0x77, 0]),
    ],
)
def test_bytes_that_are_not_mqtt_end_the_attempt_and_not_the_thread(
    noise: bytes, version: str
) -> None:
    good = CONNACK_5 if version == "5" else bytes([0x20, 2, 0, 0])
    answers = iter([noise, good])

    def script(connection: socket.socket, connect: bytes) -> None:
        connection.sendall(next(answers, good))
        time.sleep(0.05)
        if len(broker.connects) > 1:
            read_packet(connection)

    tuning = MqttTuning(connect_timeout=1.0, backoff=(0.05, 0.1))
    with ScriptedBroker(script) as broker:
        client = open_client(broker.url, protocol=version, tuning=tuning)
        with client.transport:
            client.wait_connected()
        assert client.kinds == ["Disconnected", "Connected"]
        assert isinstance(client.events[0], Disconnected)


# Limits.


@pytest.fixture
def strict_mosquitto(tmp_path: Path) -> Iterator[str]:
    """A Mosquitto that allows 3 publications in flight and packets of 5,000 bytes."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nlog_type error\nuser root\n"
        "max_inflight_messages 3\nmax_packet_size 5000\n"
    )
    with subprocess.Popen([MOSQUITTO, "-c", str(config)], stderr=subprocess.DEVNULL) as process:
        try:
            assert wait_until(lambda: _accepts(port))
            yield f"mqtt://127.0.0.1:{port}"
        finally:
            process.kill()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_brokers_limits_are_taken_over(strict_mosquitto: str) -> None:
    with MqttLab(strict_mosquitto, "5") as lab:
        server = lab.client("server", ["d"])
        device = lab.client("device")
        first = device.events[0]
        assert first == Connected(5000 - 10 - 256)
        topic = lab.topic("d")
        with pytest.raises(
            LinkError, match=rf"at most {5000 - 10 - len(topic)} - send it in parts"
        ):
            device.transport.publish(topic, bytes(5000 - 10 - len(topic) + 1))
        largest = bytes(5000 - 10 - len(topic))
        for _ in range(50):  # a broker that sees more than 3 in flight hangs up
            assert device.transport.publish(topic, largest)
        assert server.wait_payloads(50) == [largest] * 50
        assert device.kinds == ["Connected"]


def test_the_smaller_limit_wins(strict_mosquitto: str) -> None:
    with MqttLab(strict_mosquitto, "5") as lab:
        assert lab.client("small", max_payload=100).events == [Connected(100)]
        assert lab.client("large", max_payload=10_000).events == [Connected(5000 - 10 - 256)]


def test_version_3_1_1_states_no_limit(embedded: BrokerHandle) -> None:
    with MqttLab(embedded.url_v311, "3.1.1") as lab:
        assert lab.client("device").events == [Connected(None)]


# Arguments.


@pytest.mark.parametrize("version", ["1.6.1", "2.0.0", "2.1.0", "2.1.99"])
def test_an_old_paho_is_refused_with_the_repair(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 25."""
    with pytest.raises(LinkError, match=rf'paho-mqtt {version} is too old.*"paho-mqtt>=2.2"'):
        check_paho(version)


@pytest.mark.parametrize("version", ["2.2.0", "2.2", "2.10.1", "3.0.0rc1", paho.mqtt.__version__])
def test_newer_pahos_pass(version: str) -> None:
    check_paho(version)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keepalive": 0}, "keepalive = 0"),
        ({"keepalive": 65_536}, "keepalive = 65536"),
        ({"protocol": "4"}, "unknown protocol '4'"),
        ({"password": "p"}, "a password without a user"),
        ({"subscriptions": "a/b"}, "one string"),
        ({"subscriptions": ["a/#/b"]}, "not a topic filter"),
        ({"will": Will("a/+", b"")}, "cannot publish to 'a/\\+'"),
        ({"ca_file": "ca.pem"}, "mqtt:// is not encrypted"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MqttTransport("mqtt://127.0.0.1", "c", lambda event: None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_client_ids_that_cannot_be(name: str) -> None:
    with pytest.raises(UsageError, match="not a client id"):
        MqttTransport("mqtt://127.0.0.1", name, lambda event: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ca_file": "no-such.pem"}, "no such file: no-such.pem"),
        ({"key_file": __file__}, "a key file without a certificate"),
        ({"ca_file": __file__}, "the TLS files cannot be used"),
    ],
)
def test_tls_files_that_cannot_be(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MqttTransport("mqtts://127.0.0.1", "c", lambda event: None, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"max_inflight": 0},
        {"max_inflight_bytes": 0},
        {"bulk_window_bytes": 0},
        {"connect_timeout": 0},
        {"backoff": (1.0, 0.5)},
        {"backoff": (0.0, 0.5)},
    ],
)
def test_tuning_that_cannot_be(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        MqttTuning(**options)  # type: ignore[arg-type]
