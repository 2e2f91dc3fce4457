"""Brokers for the conformance suite: memory, embedded, Mosquitto, and any by address."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.link_lab import Lab, MemoryLab, MqttLab

from kellet.server.brokers import BrokerHandle, open_broker

ADDRESS = os.environ.get("KELLET_TEST_BROKER", "")
HAS_MOSQUITTO = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")

needs_mosquitto = pytest.mark.skipif(not HAS_MOSQUITTO, reason="mosquitto is not installed")
LABS = [
    "memory",
    "embedded",
    "embedded 3.1.1",
    pytest.param("mosquitto", marks=needs_mosquitto),
    pytest.param("mosquitto 3.1.1", marks=needs_mosquitto),
    *(["address"] if ADDRESS else []),
]
BROKERS = ["embedded", pytest.param("mosquitto", marks=needs_mosquitto)]


@pytest.fixture(scope="session")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerHandle]]:
    """Brokers by name, each started when it is first asked for."""
    with ExitStack() as stack:

        class Opened(dict[str, BrokerHandle]):
            def __missing__(self, spec: str) -> BrokerHandle:
                folder = tmp_path_factory.mktemp(spec)
                self[spec] = stack.enter_context(open_broker(spec, state_dir=folder))
                return self[spec]

        yield Opened()


@pytest.fixture(params=LABS)
def lab(request: pytest.FixtureRequest, brokers: dict[str, BrokerHandle]) -> Iterator[Lab]:
    """Each kind of transport in turn."""
    name, _, version = str(request.param).partition(" ")
    if name == "memory":
        opened: Lab = MemoryLab()
    elif name == "address":
        opened = MqttLab(ADDRESS)
    else:
        broker = brokers[name]
        opened = MqttLab(broker.url_v311, "3.1.1") if version else MqttLab(broker.url, "5")
    with opened:
        yield opened


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerHandle]:
    """A broker of the test's own, which it may kill."""
    with open_broker(request.param, state_dir=tmp_path) as opened:
        yield opened


@pytest.fixture
def embedded(brokers: dict[str, BrokerHandle]) -> BrokerHandle:
    """The shared embedded broker."""
    return brokers["embedded"]


@pytest.fixture(params=BROKERS)
def shared(request: pytest.FixtureRequest, brokers: dict[str, BrokerHandle]) -> BrokerHandle:
    """Each shared broker in turn."""
    return brokers[request.param]
