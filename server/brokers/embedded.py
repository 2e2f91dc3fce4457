"""The embedded broker: iotcore (rumqttd), for demos, tests and a single machine.

Each number below answers a fault that was measured:

- It drops its oldest segment in silence, so that (segments - 1) x size must be
  at least twice the bytes that admission lets through at once. With 2 MB x 2,
  6 of 15 runs lost parts; with 8 MB x 3 for 8 MB, none.
- A connection that carries control messages and parts makes it grow by 4.4 MB
  a round; with parts on a second connection its memory stays flat.
- Its defaults are 0.0.0.0 and 20 KB of payload: both are always set.
- It has no access rules for clients, so it listens on loopback alone.
- It speaks MQTT 5 and MQTT 3.1.1 on different ports.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from kellet.sdk.errors import ExtraMissing, UsageError
from kellet.server.brokers.child import Child, start_child
from kellet.server.brokers.handle import BrokerHandle

__all__ = ["open_embedded"]

LOOPBACK = "127.0.0.1"
PART_SIZE = 64 << 10
ADMISSION_BYTES = 8 << 20
SEGMENT_COUNT = 3
SEGMENT_BYTES = 8 << 20  # at least
MAX_PAYLOAD = 1 << 20
PACKET_ALLOWANCE = 1024  # what its payload limit also has to cover: topic and header

_LISTENER = """
[v{version}.1]
name = "v{version}"
listen = "{host}:{port}"
next_connection_delay_ms = 1
[v{version}.1.connections]
connection_timeout_ms = 10000
max_payload_size = {max_payload}
max_inflight_count = 100
dynamic_filters = true
"""

_ROUTER = """id = 0
[router]
id = 0
max_connections = 10010
max_outgoing_packet_count = 200
max_segment_size = {segment}
max_segment_count = {count}
"""


def open_embedded(
    folder: Path, *, host: str | None, port: int | None, admission_bytes: int | None
) -> BrokerHandle:
    """Start the embedded broker on loopback.

    Raises ``UsageError`` for any other address, ``ExtraMissing`` without
    iotcore, ``LinkError`` where the port is taken or it does not start.
    """
    if host not in (None, LOOPBACK, "localhost"):
        raise UsageError(
            f"the embedded broker does not listen on {host}",
            why="it cannot tell clients apart, so anyone on the network could speak for any device",
            repair="use --broker mosquitto, or mqtts://HOST for a broker of your own",
        )
    if importlib.util.find_spec("iotcore") is None:
        raise ExtraMissing("server", "iotcore")
    admission = ADMISSION_BYTES if admission_bytes is None else admission_bytes
    config = folder / "iotcore.toml"

    def make(ports: list[int]) -> Child:
        config.write_text(config_text(*ports, admission_bytes=admission))
        arguments = ["iotcore", str(config)]
        return Child("embedded", arguments, ports=ports, log_file=folder / "iotcore.log")

    child, (port, port_v311) = start_child(make, [(LOOPBACK, port), (LOOPBACK, None)])
    url = f"mqtt://{LOOPBACK}:{port}"
    return BrokerHandle(
        kind="embedded",
        url=url,
        public_url=url,
        url_v311=f"mqtt://{LOOPBACK}:{port_v311}",
        part_size=PART_SIZE,
        admission_bytes=admission,
        separate_bulk=True,
        max_payload=MAX_PAYLOAD,
        _child=child,
    )


def config_text(port: int, port_v311: int, *, admission_bytes: int) -> str:
    """rumqttd's configuration, with segments that hold what admission lets through."""
    text = _ROUTER.format(segment=max(SEGMENT_BYTES, admission_bytes), count=SEGMENT_COUNT)
    for version, number in ((4, port_v311), (5, port)):
        text += _LISTENER.format(
            version=version,
            host=LOOPBACK,
            port=number,
            max_payload=MAX_PAYLOAD + PACKET_ALLOWANCE,
        )
    return text
