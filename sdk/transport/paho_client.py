"""The one place that makes a paho-mqtt client, and what its callbacks note down.

paho calls back with locks of its own held, and a callback that takes another
lock, or publishes, can deadlock. So callbacks only append a note; whoever
drives the client's loop acts on the notes afterwards.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from kellet.sdk.transport.base import Received
from kellet.sdk.transport.settings import LinkSettings, Version

__all__ = [
    "Connack",
    "Goodbye",
    "Note",
    "Puback",
    "Suback",
    "acknowledge_at_once",
    "connect",
    "make_client",
]

LARGEST_RECEIVED = 16 << 20  # bytes of a packet; parts are far smaller


@dataclass(frozen=True, slots=True)
class Connack:
    """The broker's answer to CONNECT. ``properties``: paho's, empty under MQTT 3.1.1."""

    code: int
    text: str
    properties: Any


@dataclass(frozen=True, slots=True)
class Suback:
    """The broker's answer to SUBSCRIBE: a code for each filter."""

    mid: int
    codes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Puback:
    """A publication was acknowledged, or refused (code 128 and above)."""

    mid: int
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The connection is over, by the broker's word or by paho's finding."""

    code: int
    text: str
    from_broker: bool


Note = Connack | Suback | Puback | Goodbye | Received


def make_client(
    settings: LinkSettings, version: Version, window: int, notes: deque[Note]
) -> paho.Client:
    """A client for one connection, which writes what happens into ``notes``."""
    from paho.mqtt.enums import CallbackAPIVersion  # not in paho 1, which check_paho refuses

    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        settings.client_id,
        clean_session=None if version == "5" else True,
        protocol=paho.MQTTv5 if version == "5" else paho.MQTTv311,
        reconnect_on_failure=False,
    )
    client.connect_timeout = settings.connect_timeout
    client.max_inflight_messages = window
    if settings.username is not None:
        client.username_pw_set(settings.username, settings.password)
    if settings.tls is not None:
        client.tls_set_context(settings.tls)
    if settings.will is not None:
        client.will_set(settings.will.topic, settings.will.payload, qos=1, retain=True)
    client.on_connect = lambda _c, _u, _flags, code, properties: notes.append(
        Connack(code.value, str(code), properties)
    )
    client.on_subscribe = lambda _c, _u, mid, codes, _p: notes.append(
        Suback(mid, tuple(code.value for code in codes))
    )
    client.on_publish = lambda _c, _u, mid, code, _p: notes.append(
        Puback(mid, code.value, str(code))
    )
    client.on_disconnect = lambda _c, _u, flags, code, _p: notes.append(
        Goodbye(code.value, str(code), flags.is_disconnect_packet_from_server)
    )
    client.on_message = lambda _c, _u, message: notes.append(
        Received(message.topic, bytes(message.payload))
    )
    client.on_socket_open = _no_delay
    # Without this callback paho would write to the socket from the publisher's own thread.
    client.on_socket_register_write = lambda _c, _u, _s: None
    return client


def connect(client: paho.Client, settings: LinkSettings, version: Version) -> None:
    """Open the socket and send CONNECT. Raises ``OSError`` or ``ValueError``."""
    url = settings.url
    if version == "5":
        wishes: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        wishes.ReceiveMaximum = settings.max_inflight
        wishes.MaximumPacketSize = LARGEST_RECEIVED
        client.connect(url.host, url.port, settings.keepalive, clean_start=True, properties=wishes)
    else:
        client.connect(url.host, url.port, settings.keepalive)


def _no_delay(_client: paho.Client, _userdata: Any, connection: Any) -> None:
    """Send small packets at once: an acknowledgement that waits 40 ms halves the throughput."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def acknowledge_at_once(client: paho.Client) -> None:
    """Let TCP acknowledge what comes next without waiting for something to send with it.

    Brokers hold a small packet back until the one before it is acknowledged, which the kernel
    likes to delay by 40 ms. It forgets this setting, so it is made before each wait.
    """
    connection: Any = client.socket()  # paho's type for it leaves most of a socket out
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
