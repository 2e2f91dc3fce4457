"""What every transport promises, whatever the broker behind it."""

from __future__ import annotations

import pytest
from support.link_lab import Lab

from kellet.sdk.errors import LinkError, UsageError
from kellet.sdk.transport.base import Connected, Received


def test_publications_arrive_once_and_in_order(lab: Lab) -> None:
    server = lab.client("server", ["d/+/req"])
    device = lab.client("device")
    sent = [b"%d" % number for number in range(200)]
    for payload in sent:
        assert device.transport.publish(lab.topic("d/pi/req"), payload)
    assert server.wait_payloads(200) == sent
    assert {event.topic for event in server.received} == {lab.topic("d/pi/req")}


def test_connected_comes_first_and_retained_state_after_it(lab: Lab) -> None:
    server = lab.client("server")
    server.transport.publish(lab.topic("pub/round"), b"round 7", retain=True)
    lab.settle()
    device = lab.client("device", ["pub/round"])
    assert device.wait_payloads(1) == [b"round 7"]
    assert isinstance(device.events[0], Connected)
    assert device.events[1] == Received(lab.topic("pub/round"), b"round 7")


def test_a_retained_message_is_replaced_outlives_its_sender_and_can_be_cleared(lab: Lab) -> None:
    server = lab.client("server")
    for payload in (b"1", b"2", b"3"):
        server.transport.publish(lab.topic("pub/round"), payload, retain=True)
    lab.settle()
    server.transport.close()
    first = lab.client("first", ["pub/#"])
    assert first.wait_payloads(1) == [b"3"]
    first.transport.publish(lab.topic("pub/round"), b"", retain=True)
    lab.settle()
    second = lab.client("second", ["pub/#"])
    lab.settle()
    assert second.received == []


def test_a_plain_publication_is_not_kept(lab: Lab) -> None:
    server = lab.client("server")
    server.transport.publish(lab.topic("pub/round"), b"gone")
    lab.settle()
    device = lab.client("device", ["pub/round"])
    lab.settle()
    assert device.received == []


def test_wildcards(lab: Lab) -> None:
    server = lab.client("server", ["d/+/req", "w/#"])
    device = lab.client("device")
    for topic in ("d/a/req", "d/b/req", "d/a/ctl", "d/req", "w/0/a/up", "w"):
        device.transport.publish(lab.topic(topic), topic.encode())
    lab.settle()
    assert server.wait_payloads(4) == [b"d/a/req", b"d/b/req", b"w/0/a/up", b"w"]


def test_subscriptions_can_be_added_and_given_up(lab: Lab) -> None:
    server = lab.client("server")
    device = lab.client("device")
    server.transport.publish(lab.topic("pub/blob/a/0"), b"kept", retain=True)
    lab.settle()
    device.transport.subscribe(lab.topic("pub/blob/a/+"))
    assert device.wait_payloads(1) == [b"kept"]
    lab.settle()
    server.transport.publish(lab.topic("pub/blob/a/1"), b"live")
    assert device.wait_payloads(2) == [b"kept", b"live"]
    device.transport.unsubscribe(lab.topic("pub/blob/a/+"))
    lab.settle()
    server.transport.publish(lab.topic("pub/blob/a/2"), b"unwanted")
    lab.settle()
    assert device.payloads == [b"kept", b"live"]


def test_a_will_is_published_and_retained_when_the_link_goes(lab: Lab) -> None:
    server = lab.client("server", ["d/+/state"])
    device = lab.client("device", will="d/pi/state")
    device.transport.publish(lab.topic("d/pi/state"), b"here", retain=True)
    assert server.wait_payloads(1) == [b"here"]
    lab.cut(device)
    assert server.wait_payloads(2) == [b"here", b"gone"]
    late = lab.client("late", ["d/+/state"])
    assert late.wait_payloads(1) == [b"gone"]


def test_no_will_on_close(lab: Lab) -> None:
    server = lab.client("server", ["d/+/state"])
    device = lab.client("device", ["flood"], will="d/pi/state")
    for _ in range(50):  # close while messages are on their way to it
        server.transport.publish(lab.topic("flood"), bytes(1000))
    device.transport.close()
    count = len(device.events)
    lab.settle()
    assert server.received == []
    assert len(device.events) == count
    device.transport.close()
    assert not device.transport.publish(lab.topic("d/pi/state"), b"late")


def test_subscriptions_are_back_after_a_cut(lab: Lab) -> None:
    """Case 22."""
    server = lab.client("server")
    device = lab.client("device", ["pub/round"])
    device.transport.subscribe(lab.topic("d/pi/ctl"))
    lab.cut(device)
    lab.mend(device)
    device.wait_connected(times=2)
    assert device.kinds == ["Connected", "Disconnected", "Connected"]
    server.transport.publish(lab.topic("pub/round"), b"opened with")
    server.transport.publish(lab.topic("d/pi/ctl"), b"added later")
    assert device.wait_payloads(2) == [b"opened with", b"added later"]


def test_nothing_is_kept_for_the_absent_but_retained_state(lab: Lab) -> None:
    """Cases 20 and 23: level-triggered, clean sessions."""
    server = lab.client("server", ["d/pi/req"])
    device = lab.client("device", ["pub/round", "d/pi/ctl"])
    lab.cut(device)
    server.transport.publish(lab.topic("d/pi/ctl"), b"missed")
    server.transport.publish(lab.topic("pub/round"), b"round 8", retain=True)
    assert not device.transport.publish(lab.topic("d/pi/req"), b"never sent")
    lab.settle()
    lab.mend(device)
    device.wait_connected(times=2)
    lab.settle()
    assert device.wait_payloads(1) == [b"round 8"]
    assert server.received == []
    assert device.transport.publish(lab.topic("d/pi/req"), b"hello again")
    assert server.wait_payloads(1) == [b"hello again"]


def test_a_payload_too_large_is_a_local_error_and_the_link_stays_up(lab: Lab) -> None:
    server = lab.client("server", ["d/pi/req"])
    device = lab.client("device", max_payload=1000)
    first = device.events[0]
    assert isinstance(first, Connected)
    assert first.max_payload == 1000
    with pytest.raises(LinkError, match=r"1001 bytes .* at most 1000 - send it in parts"):
        device.transport.publish(lab.topic("d/pi/req"), bytes(1001))
    assert device.transport.publish(lab.topic("d/pi/req"), bytes(1000))
    assert server.wait_payloads(1) == [bytes(1000)]
    assert device.kinds == ["Connected"]


def test_topics_and_filters_are_checked(lab: Lab) -> None:
    device = lab.client("device")
    for topic in ("", "a/+", "a/#", "a\0b", "x" * 65_536):
        with pytest.raises(UsageError):
            device.transport.publish(topic, b"")
    for payload in (5, "text", None, [1]):
        with pytest.raises(UsageError, match="a payload is bytes"):
            device.transport.publish(lab.topic("a"), payload)
    for topic_filter in ("", "a/#/b", "a+", "a#", "\0"):
        with pytest.raises(UsageError):
            device.transport.subscribe(topic_filter)
    assert device.kinds == ["Connected"]


def test_a_client_hears_itself_and_empty_payloads_pass(lab: Lab) -> None:
    device = lab.client("device", ["echo"])
    device.transport.publish(lab.topic("echo"), b"")
    device.transport.publish(lab.topic("echo"), bytes(range(256)))
    assert device.wait_payloads(2) == [b"", bytes(range(256))]


def test_parts_arrive_whole(lab: Lab) -> None:
    server = lab.client("server", ["w/0/+/up"])
    device = lab.client("device")
    parts = [bytes([number]) * 65_536 for number in range(6)]
    for part in parts:
        assert device.transport.publish(lab.topic("w/0/pi/up"), part, bulk=True)
    assert server.wait_payloads(6) == parts
