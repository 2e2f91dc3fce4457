"""Taking leave, and inboxes that misbehave."""

from __future__ import annotations

import os
import threading
import time

import pytest
from support.link_lab import QUICK, MqttLab, open_client, wait_until

from kellet.sdk.transport.base import Connected, Received
from kellet.sdk.transport.mqtt import MqttTransport
from kellet.server.brokers import BrokerHandle


def test_close_is_quick_and_what_was_accepted_arrives(shared: BrokerHandle) -> None:
    with MqttLab(shared.url) as lab:
        server = lab.client("server", ["d/#"])
        device = lab.client("device", will="d/pi/state")
        for number in range(100):
            assert device.transport.publish(lab.topic("d/pi/req"), b"%d" % number)
        began = time.monotonic()
        device.transport.close()
        assert time.monotonic() - began < 1.5
        assert server.wait_payloads(100) == [b"%d" % number for number in range(100)]
        lab.settle()
        assert len(server.payloads) == 100  # no will
        assert device.kinds == ["Connected"]


def test_close_does_not_wait_for_a_dead_link(shared: BrokerHandle) -> None:
    with MqttLab(shared.url) as lab:
        device = lab.client("device")
        lab.proxy(device).black_hole = True
        device.transport.publish(lab.topic("d"), b"x")
        began = time.monotonic()
        device.transport.close()
        assert time.monotonic() - began < 4.5


def test_no_will_when_a_client_closes_in_a_flood(shared: BrokerHandle) -> None:
    with MqttLab(shared.url) as lab:
        server = lab.client("server", ["d/+/state"])
        for attempt in range(5):
            device = lab.client(f"device{attempt}", ["flood"], will="d/pi/state")
            for _ in range(30):
                server.transport.publish(lab.topic("flood"), bytes(10_000), bulk=True)
            device.wait_payloads(1)
            device.transport.close()
        lab.settle()
        assert server.received == []


def test_no_thread_and_no_socket_is_left_behind(shared: BrokerHandle) -> None:
    def sockets() -> int:
        return sum(
            os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
            for number in os.listdir("/proc/self/fd")
            if os.path.islink(f"/proc/self/fd/{number}")
        )

    threads, before = threading.active_count(), sockets()
    for number in range(5):
        client = open_client(shared.url, f"passing-{number}", separate_bulk=True)
        client.transport.wait_connected()
        client.transport.close()
    assert wait_until(lambda: threading.active_count() <= threads)
    assert sockets() <= before


def test_an_inbox_that_raises_does_not_end_the_link(
    shared: BrokerHandle, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    def inbox(event: object) -> None:
        if isinstance(event, Received):
            seen.append(event.payload)
            raise RuntimeError("of the user's own")

    with MqttTransport(shared.url, "raises", inbox, subscriptions=["x"], tuning=QUICK) as link:
        link.wait_connected()
        for payload in (b"1", b"2"):
            link.publish("x", payload)
        assert wait_until(lambda: seen == [b"1", b"2"])
    assert [
        record.exc_text.count("RuntimeError: of the user's own") for record in caplog.records
    ] == [
        1,
        1,
    ]


def test_an_inbox_may_publish_subscribe_and_close(shared: BrokerHandle) -> None:
    """No deadlock, whatever the inbox calls; close from inside returns at once."""
    seen: list[bytes] = []
    closed = threading.Event()

    def inbox(event: object) -> None:
        if isinstance(event, Connected):
            link.subscribe("inside/b")
            link.publish("inside/a", b"0")
        if isinstance(event, Received):
            seen.append(event.payload)
            number = int(event.payload)
            if number == 50:
                link.close()
                closed.set()
            link.publish("inside/b" if number else "inside/a", b"%d" % (number + 1))

    ready = threading.Event()

    def gated(event: object) -> None:
        ready.wait()
        inbox(event)

    link = MqttTransport(shared.url, "inside", gated, subscriptions=["inside/a"], tuning=QUICK)
    ready.set()
    assert closed.wait(10)
    assert seen == [b"%d" % number for number in range(51)]
    assert not link.publish("inside/a", b"0")
    link.close()


def test_many_threads_may_publish(shared: BrokerHandle) -> None:
    with MqttLab(shared.url) as lab:
        server = lab.client("server", ["d/+"])
        device = lab.client("device")

        def publish(name: int) -> None:
            for number in range(100):
                assert device.transport.publish(lab.topic(f"d/{name}"), b"%d" % number)

        threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.wait_payloads(400)
        for name in range(4):
            own = [e.payload for e in server.received if e.topic == lab.topic(f"d/{name}")]
            assert own == [b"%d" % number for number in range(100)]
