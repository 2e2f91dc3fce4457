"""The memory broker, to the event."""

from __future__ import annotations

import doctest

import pytest

from kellet.sdk.errors import UsageError
from kellet.sdk.transport import memory
from kellet.sdk.transport.base import (
    Connected,
    Disconnected,
    Received,
    Refused,
    TransportEvent,
    Will,
)
from kellet.sdk.transport.memory import MemoryBroker, MemoryTransport


def open_client(
    broker: MemoryBroker, name: str, *filters: str, will: Will | None = None
) -> tuple[MemoryTransport, list[TransportEvent]]:
    events: list[TransportEvent] = []
    return MemoryTransport(broker, name, events.append, subscriptions=filters, will=will), events


def test_the_module_example() -> None:
    assert doctest.testmod(memory).failed == 0


def test_nothing_is_delivered_before_pump_and_then_in_order() -> None:
    broker = MemoryBroker()
    _, heard = open_client(broker, "server", "d/+/req")
    device, _ = open_client(broker, "device")
    for number in range(3):
        assert device.publish("d/pi/req", b"%d" % number)
    assert heard == []
    assert broker.pending == 5  # two Connected, three messages
    assert broker.pump(limit=3) == 3
    assert heard == [Connected(None), Received("d/pi/req", b"0")]
    assert broker.pending == 2
    assert broker.pump() == 2
    assert broker.pump() == 0
    assert heard[2:] == [Received("d/pi/req", b"1"), Received("d/pi/req", b"2")]


def test_what_inboxes_publish_is_queued_behind_and_the_limit_stops_a_loop() -> None:
    broker = MemoryBroker()
    order: list[str] = []

    def echo(event: TransportEvent) -> None:
        if isinstance(event, Received):
            order.append(event.topic)
            link.publish("b" if event.topic == "a" else "a", b"")

    link = MemoryTransport(broker, "echo", echo, subscriptions=["a", "b"])
    link.publish("a", b"")
    link.publish("a", b"")
    assert broker.pump(limit=7) == 7
    assert order == ["a", "a", "b", "b", "a", "a"]
    assert broker.pending == 2


def test_pump_is_not_reentrant_and_an_inbox_that_raises_stops_it_once() -> None:
    broker = MemoryBroker()
    calls: list[TransportEvent] = []

    def inbox(event: TransportEvent) -> None:
        calls.append(event)
        if isinstance(event, Received):
            broker.pump()

    link = MemoryTransport(broker, "nested", inbox, subscriptions=["a"])
    link.publish("a", b"1")
    link.publish("a", b"2")
    with pytest.raises(UsageError, match="from inside an inbox"):
        broker.pump()
    assert broker.pending == 1
    with pytest.raises(UsageError):
        broker.pump()
    assert broker.pending == 0
    assert calls == [Connected(None), Received("a", b"1"), Received("a", b"2")]


def test_one_copy_however_many_filters_match() -> None:
    broker = MemoryBroker()
    _, heard = open_client(broker, "server", "a/b", "a/+", "a/#", "#")
    device, _ = open_client(broker, "device")
    device.publish("a/b", b"x", retain=True)
    broker.pump()
    assert heard == [Connected(None), Received("a/b", b"x")]
    _, late = open_client(broker, "late", "a/b", "#")
    broker.pump()
    assert late == [Connected(None), Received("a/b", b"x")]


def test_a_dropped_link_loses_what_was_under_way_and_publishes_the_will() -> None:
    broker = MemoryBroker()
    _, heard = open_client(broker, "server", "d/+/state")
    device, events = open_client(broker, "device", "ctl", will=Will("d/pi/state", b"gone"))
    server_out, _ = open_client(broker, "other")
    broker.pump()
    server_out.publish("ctl", b"lost")
    assert broker.pending == 1
    broker.drop_link("device")
    assert broker.pending == 2  # Disconnected, and the will to the server
    server_out.publish("ctl", b"missed")
    assert not device.publish("d/pi/state", b"unheard")
    device.subscribe("ctl2")
    broker.drop_link("device")
    broker.pump()
    assert events == [Connected(None), Disconnected("the link was dropped")]
    assert heard == [Connected(None), Received("d/pi/state", b"gone")]
    broker.restore_link("device")
    broker.restore_link("device")
    server_out.publish("ctl", b"back")
    server_out.publish("ctl2", b"too")
    broker.pump()
    assert events[2:] == [Connected(None), Received("ctl", b"back"), Received("ctl2", b"too")]


def test_disconnected_is_seen_before_connected_even_without_a_pump_between() -> None:
    broker = MemoryBroker()
    _, events = open_client(broker, "device")
    broker.pump()
    broker.drop_link("device")
    broker.restore_link("device")
    broker.pump()
    assert [type(event) for event in events] == [Connected, Disconnected, Connected]


def test_restart_forgets_everything_but_the_clients() -> None:
    broker = MemoryBroker()
    server, heard = open_client(broker, "server", "#", will=Will("state", b"gone"))
    server.publish("pub/round", b"7", retain=True)
    server.publish("pub/round", b"8")
    broker.restart()
    assert broker.pump() == 1
    assert heard == [Disconnected("the broker was restarted")]
    broker.restore_link("server")
    broker.pump()
    assert heard[1:] == [Connected(None)]


def test_close_is_final_and_silent() -> None:
    broker = MemoryBroker()
    _, heard = open_client(broker, "server", "#")
    device, events = open_client(broker, "device", "#", will=Will("state", b"gone"))
    broker.pump()
    device.publish("x", b"1")
    with device:
        pass
    device.close()
    assert not device.publish("x", b"2")
    broker.pump()
    assert heard == [Connected(None), Received("x", b"1")]
    assert events == [Connected(None)]
    with pytest.raises(UsageError, match="no client 'device'"):
        broker.restore_link("device")
    again, fresh = open_client(broker, "device")
    broker.pump()
    assert fresh == [Connected(None)]
    device.close()
    assert again.publish("x", b"3")


def test_a_newer_client_with_the_same_id_takes_over() -> None:
    broker = MemoryBroker()
    _, heard = open_client(broker, "server", "state")
    older, old_events = open_client(broker, "twin", "#", will=Will("state", b"gone"))
    broker.pump()
    newer, new_events = open_client(broker, "twin")
    broker.pump()
    assert old_events == [Connected(None), Refused("another client with this id took over")]
    assert new_events == [Connected(None)]
    assert heard[1:] == [Received("state", b"gone")]
    assert not older.publish("x", b"")
    older.close()
    assert newer.publish("x", b"")


def test_payloads_are_copied_where_they_could_change() -> None:
    broker = MemoryBroker()
    link, events = open_client(broker, "c", "a")
    payload = bytearray(b"before")
    link.publish("a", payload)  # type: ignore[arg-type]
    payload[:] = b"after!"
    broker.pump()
    assert events[1] == Received("a", b"before")


def test_unsubscribing_one_of_many_leaves_the_others() -> None:
    broker = MemoryBroker()
    a, heard_a = open_client(broker, "a", "x/+")
    _, heard_b = open_client(broker, "b", "x/+")
    a.unsubscribe("x/+")
    a.unsubscribe("never/asked")
    a.publish("x/1", b"")
    broker.pump()
    assert heard_a == [Connected(None)]
    assert heard_b == [Connected(None), Received("x/1", b"")]


def test_a_thousand_clients_cost_little_per_event() -> None:
    """Routing must not walk the clients that do not match: 1,000 publications to one each."""
    broker = MemoryBroker()
    count = [0]

    def inbox(event: TransportEvent) -> None:
        count[0] += 1

    server = MemoryTransport(broker, "server", inbox, subscriptions=["d/+/req", "d/+/state"])
    links = [
        MemoryTransport(
            broker, f"c{i}", inbox, subscriptions=["round", "blob/+/+", f"d/c{i}/ctl", f"own/{i}/#"]
        )
        for i in range(1000)
    ]
    broker.pump()
    count[0] = 0
    for link in links:
        link.publish(f"d/{link.client_id}/req", b"join")
        server.publish(f"d/{link.client_id}/ctl", b"train")
    assert broker.pump() == 2000
    server.publish("round", b"1", retain=True)
    assert broker.pump() == 1000
    assert count[0] == 3000
