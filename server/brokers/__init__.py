"""Brokers: the embedded one, a supervised Mosquitto, or any other by its address.

>>> with open_broker("embedded", state_dir=folder) as broker:  # doctest: +SKIP
...     link = MqttTransport(broker.url, "server", inbox, separate_bulk=broker.separate_bulk)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kellet.sdk.errors import StorageError, UsageError
from kellet.sdk.transport.url import parse_url
from kellet.server.brokers.embedded import open_embedded
from kellet.server.brokers.handle import BrokerHandle
from kellet.server.brokers.mosquitto import TlsFiles, open_mosquitto

__all__ = ["BrokerHandle", "TlsFiles", "open_broker"]

EXTERNAL_PART_SIZE = 64 << 10
EXTERNAL_ADMISSION_BYTES = 16 << 20


def open_broker(
    spec: str,
    *,
    state_dir: Path | str,
    host: str | None = None,
    port: int | None = None,
    admission_bytes: int | None = None,
    part_size: int | None = None,
    users: Mapping[str, str] | None = None,
    tls: TlsFiles | None = None,
    ca_file: Path | None = None,
) -> BrokerHandle:
    """Open the broker that ``spec`` names, and return once it listens.

    Parameters
    ----------
    spec:
        ``"embedded"``, ``"mosquitto"``, or the address of a running broker:
        ``mqtt://`` or ``mqtts://``, with credentials where it wants them. None
        is ever chosen by what happens to be installed.
    state_dir:
        a folder for configuration and log (in ``state_dir/broker``).
    host, port:
        where a broker of our own listens: 127.0.0.1 and a free port, unless
        given. The embedded one listens nowhere else.
    admission_bytes, part_size:
        instead of what suits the broker.
    users, tls:
        for Mosquitto alone; see ``open_mosquitto``.
    ca_file:
        whom to trust, for an external ``mqtts://`` (default: the system's authorities).

    Raises ``UsageError`` for options that do not fit the broker, ``LinkError``
    where it cannot be started, ``ExtraMissing`` where a package is missing,
    ``StorageError`` where ``state_dir`` cannot be written.
    """
    for name, value in (("admission_bytes", admission_bytes), ("part_size", part_size)):
        if value is not None and value < 1024:
            raise UsageError(f"{name} {value} is too small", repair="give 1024 or more")
    if port is not None and not 1 <= port <= 65_535:
        raise UsageError(f"port {port} is out of range", repair="give 1 to 65535")
    if spec not in ("embedded", "mosquitto"):
        if host is not None or port is not None or users is not None or tls is not None:
            raise UsageError(
                "host, port, users and TLS files are for a broker that is started here",
                repair="use --broker mosquitto, or set them where that broker runs",
            )
        handle = _external(spec, admission_bytes, ca_file)
    elif spec == "embedded" and (users is not None or tls is not None):
        raise UsageError(
            "the embedded broker has neither users nor TLS",
            why="it serves this machine alone",
            repair="use --broker mosquitto",
        )
    else:
        folder = Path(state_dir).absolute() / "broker"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if spec == "embedded":
                handle = open_embedded(
                    folder, host=host, port=port, admission_bytes=admission_bytes
                )
            else:
                handle = open_mosquitto(
                    folder,
                    host=host,
                    port=port,
                    admission_bytes=admission_bytes,
                    users=users,
                    tls=tls,
                )
        except OSError as error:
            raise StorageError(
                f"cannot write to {folder}", why=str(error), repair="choose another folder"
            ) from error
    if part_size is not None:
        handle.part_size = part_size
    return handle


def _external(spec: str, admission_bytes: int | None, ca_file: Path | None) -> BrokerHandle:
    if "://" not in spec:
        raise UsageError(
            f"unknown broker {spec!r}",
            repair="embedded, mosquitto, or an address like mqtts://HOST:PORT",
        )
    address = parse_url(spec)
    return BrokerHandle(
        kind="external",
        url=str(address),
        public_url=str(address),
        url_v311=str(address),
        part_size=EXTERNAL_PART_SIZE,
        admission_bytes=EXTERNAL_ADMISSION_BYTES if admission_bytes is None else admission_bytes,
        username=address.username,
        password=address.password,
        ca_file=ca_file,
    )
