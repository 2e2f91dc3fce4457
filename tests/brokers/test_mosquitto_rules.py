"""Mosquitto with users, access rules and TLS."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.link_lab import QUICK, Client

from kellet.sdk.errors import LinkError, UsageError
from kellet.sdk.protocol.topics import Topics
from kellet.sdk.transport.base import Will
from kellet.sdk.transport.mqtt import MqttTransport
from kellet.server.brokers import BrokerHandle, TlsFiles, mosquitto, open_broker

pytestmark = pytest.mark.skipif(
    not (shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")),
    reason="mosquitto is not installed",
)
USERS = {"a": "of a", "b": "of b"}
TOPICS = Topics("fleet")
Opener = Callable[..., Client]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerHandle]:
    with open_broker("mosquitto", state_dir=tmp_path_factory.mktemp("m"), users=USERS) as opened:
        yield opened


@pytest.fixture(params=["5", "3.1.1"])
def opener(request: pytest.FixtureRequest, broker: BrokerHandle) -> Iterator[Opener]:
    """Opens clients; ``user`` is "server" for the aggregator's own."""
    opened: list[Client] = []

    def open_client(user: str, *filters: str, will: Will | None = None) -> Client:
        server = user == "server"
        client = Client(lambda: None)
        client.transport = MqttTransport(
            broker.url,
            f"{user}-{len(opened)}",
            client.inbox,
            subscriptions=filters,
            will=will,
            username=broker.username if server else user,
            password=broker.password if server else USERS[user],
            protocol=request.param,
            tuning=QUICK,
        )
        opened.append(client)
        client.wait_connected()
        return client

    yield open_client
    for client in opened:
        client.transport.close()


def test_a_device_speaks_as_itself_alone(opener: Opener) -> None:
    """Case 33: what A publishes as B, or as the server, arrives nowhere."""
    server = opener("server", "kellet/1/#")
    device = opener("a")
    for topic in (
        TOPICS.req("b"),
        TOPICS.state("b"),
        TOPICS.up("0", "b"),
        TOPICS.ctl("a"),
        TOPICS.ctl("b"),
        TOPICS.round,
        TOPICS.blob(bytes(32), 0),
        "kellet/1/fleet/d/a/req/more",
        "elsewhere",
    ):
        device.transport.publish(topic, b"forged " + topic.encode())
    allowed = [TOPICS.req("a"), TOPICS.state("a"), TOPICS.up("0", "a"), TOPICS.up("1", "a")]
    for topic in allowed:
        device.transport.publish(topic, topic.encode())
    server.wait_payloads(len(allowed))
    time.sleep(0.1)
    assert server.payloads == [topic.encode() for topic in allowed]
    assert device.kinds == ["Connected"]


def test_a_device_hears_the_server_and_not_its_neighbour(opener: Opener) -> None:
    spy = opener("b", "#")
    device = opener("a", *TOPICS.device_filters("a"), "kellet/1/fleet/pub/blob/+/+")
    server = opener("server")
    private = [TOPICS.ctl("a"), TOPICS.req("a"), TOPICS.up("0", "a"), TOPICS.state("a")]
    public = [TOPICS.round, TOPICS.blob(bytes(32), 0)]
    for topic in private + public:
        server.transport.publish(topic, topic.encode())
    assert device.wait_payloads(3) == [each.encode() for each in (TOPICS.ctl("a"), *public)]
    assert spy.wait_payloads(2) == [each.encode() for each in public]
    time.sleep(0.1)
    assert len(spy.payloads) == 2


DYING_FORGER = """
import os, sys
from kellet.sdk.transport.base import Will
from kellet.sdk.transport.mqtt import MqttTransport
for topic in sys.argv[2:]:
    link = MqttTransport(sys.argv[1], topic.replace("/", "-"), lambda event: None,
                         username="a", password="of a", will=Will(topic, b"gone"))
    link.wait_connected(10)
os._exit(1)
"""


def test_a_forged_will_is_not_published(opener: Opener, broker: BrokerHandle) -> None:
    server = opener("server", TOPICS.state("b"), TOPICS.state("a"))
    command = [sys.executable, "-c", DYING_FORGER, broker.url, TOPICS.state("b"), TOPICS.state("a")]
    subprocess.run(command, check=False, timeout=30)
    assert server.wait_payloads(1) == [b"gone"]
    time.sleep(0.1)
    assert [event.topic for event in server.received] == [TOPICS.state("a")]
    server.transport.publish(TOPICS.state("a"), b"", retain=True)


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
@pytest.mark.parametrize(
    "credentials",
    [
        {},
        {"username": "a", "password": "of b"},
        {"username": "a", "password": ""},
        {"username": "c", "password": "of a"},
        {"username": mosquitto.SERVER_USER, "password": "guess"},
    ],
)
def test_wrong_credentials_are_refused(
    broker: BrokerHandle, credentials: dict[str, str], protocol: str
) -> None:
    client = Client(lambda: None)
    client.transport = MqttTransport(
        broker.url,
        "intruder",
        client.inbox,
        protocol=protocol,  # type: ignore[arg-type]
        **credentials,  # type: ignore[arg-type]
    )
    with client.transport:
        with pytest.raises(LinkError, match=r"refuses this client: .*check user, password"):
            client.transport.wait_connected(timeout=10)
        client.wait_refused()


def test_the_aggregators_own_credentials_work_and_hide(
    broker: BrokerHandle, tmp_path: Path
) -> None:
    assert broker.healthy()
    assert broker.password is not None
    assert broker.password not in repr(broker)
    with open_broker("mosquitto", state_dir=tmp_path, users=USERS):
        for name in ("passwords", "rules"):
            path = tmp_path / "broker" / name
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert "of a" not in path.read_text()


@pytest.mark.parametrize("name", ["a/b", "+", "#", "", "ü", "a" * 65, mosquitto.SERVER_USER])
def test_user_names_that_cannot_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        open_broker("mosquitto", state_dir=tmp_path, users={name: "x"})


def test_an_empty_password_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="an empty password for a"):
        open_broker("mosquitto", state_dir=tmp_path, users={"a": ""})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a certificate of its for localhost, and a foreign authority."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "rsa:2048", "-nodes")
    for name in ("ca", "foreign"):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        openssl(*new, "-x509", "-days", "2", "-subj", f"/CN={name}", *files)
    files = ("-keyout", "broker.key", "-out", "broker.csr")
    openssl(*new, "-subj", "/CN=localhost", *files)
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1")
    signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
    openssl("x509", "-req", "-in", "broker.csr", *signer, "-days", "2", "-out", "broker.pem")
    return folder


def test_tls(certificates: Path, tmp_path: Path) -> None:
    files = TlsFiles(certificates / "broker.pem", certificates / "broker.key")
    with open_broker("mosquitto", state_dir=tmp_path, users=USERS, tls=files) as broker:
        assert broker.public_url.startswith("mqtts://127.0.0.1:")
        assert broker.url.startswith("mqtt://127.0.0.1:")
        assert broker.healthy()

        def attempt(url: str, ca: str) -> Client:
            client = Client(lambda: None)
            client.transport = MqttTransport(
                url,
                "a",
                client.inbox,
                subscriptions=[TOPICS.ctl("a")],
                username="a",
                password="of a",
                ca_file=certificates / ca if ca else None,
                tuning=QUICK,
            )
            return client

        device = attempt(broker.public_url, "ca.pem")
        with device.transport:
            device.transport.wait_connected()
            server = MqttTransport(
                broker.url,
                "server",
                lambda event: None,
                username=broker.username,
                password=broker.password,
            )
            with server:
                server.wait_connected()
                parts = [bytes([number]) * 100_000 for number in range(5)]
                for part in parts:
                    assert server.publish(TOPICS.ctl("a"), part)
                assert device.wait_payloads(5) == parts
        port = broker.public_url.rpartition(":")[2]
        for url, ca, why in (
            (broker.public_url, "foreign.pem", "its certificate is not trusted"),
            (broker.public_url, "", "its certificate is not trusted"),
            (f"mqtt://127.0.0.1:{port}", "", "whether it wants mqtts://"),
            (broker.url.replace("mqtt:", "mqtts:"), "ca.pem", "for a plain port write mqtt://"),
        ):
            stranger = attempt(url, ca)
            with stranger.transport, pytest.raises(LinkError, match=why):
                stranger.transport.wait_connected(timeout=15)
