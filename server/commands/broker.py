"""The broker of ``kellet server``: options, and how it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from cyclopts import Parameter

from kellet.sdk.commands.options import Whole
from kellet.sdk.errors import UsageError

if TYPE_CHECKING:
    from kellet.server.brokers import BrokerHandle

__all__ = ["BrokerOptions", "own_url", "remember_port"]

_OURS = ("embedded", "mosquitto")


@Parameter(name="*", group="A broker of our own")
@dataclass(frozen=True, kw_only=True)
class BrokerOptions:
    """Where a broker of our own listens, and whom it lets in."""

    host: str | None = None
    """Where it listens; 127.0.0.1, or 0.0.0.0 where Mosquitto has --users, unless given."""

    port: Whole | None = None
    """Its port; unless given, a free one, and the same again after a restart; with --users
    1883, or 8883 with --tls-cert."""

    users: Path | None = None
    """Mosquitto: file of DEVICE:PASSWORD lines; each device may then speak for itself alone."""

    tls_cert: Path | None = None
    """Mosquitto: PEM file of the broker's certificate."""

    tls_key: Path | None = None
    """Mosquitto: PEM file of the certificate's key."""

    part_size: Whole | None = None
    """Bytes in a message; what suits the broker, unless given."""

    admission: Whole | None = None
    """Bytes of updates on their way at once; what suits the broker, unless given."""

    def open(self, broker: str, state: Path, ca_file: Path | None) -> BrokerHandle:
        """Open ``broker``. Raises the errors of ``open_broker``, and ``UsageError``."""
        from kellet.server.brokers import TlsFiles, open_broker

        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("--tls-cert and --tls-key belong together", repair="give both")
        tls = None
        if self.tls_cert is not None and self.tls_key is not None:
            tls = TlsFiles(self.tls_cert, self.tls_key)
        host, port = self.address(broker, state)
        return open_broker(
            broker,
            state_dir=state,
            host=host,
            port=port,
            admission_bytes=self.admission,
            part_size=self.part_size,
            users=None if self.users is None else read_users(self.users),
            tls=tls,
            ca_file=ca_file,
        )

    def address(self, broker: str, state: Path) -> tuple[str | None, int | None]:
        """(host, port) to listen at; None leaves it to ``open_broker``."""
        if broker == "mosquitto" and self.users is not None:
            # Each client needs a password, so that other machines' devices may come.
            usual = 1883 if self.tls_cert is None else 8883
            host = "0.0.0.0" if self.host is None else self.host
            return host, usual if self.port is None else self.port
        if self.port is not None or broker not in _OURS:
            return self.host, self.port
        return self.host, self._earlier_port(state)

    def _earlier_port(self, state: Path) -> int | None:
        """The port of the last time, if it is free: devices know it by now."""
        from kellet.server.brokers.child import port_is_free

        try:
            earlier = int(_port_file(state).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return earlier if port_is_free(self.host or "127.0.0.1", earlier) else None


def remember_port(state: Path, handle: BrokerHandle) -> None:
    """Let a broker of ours be at the same port after a restart."""
    if handle.kind != "external":
        _port_file(state).write_text(handle.public_url.rpartition(":")[2])


def read_users(file: Path) -> dict[str, str]:
    """DEVICE:PASSWORD lines; empty ones and those that begin with # are left out."""
    users: dict[str, str] = {}
    try:
        lines = file.read_text().splitlines()
    except OSError as error:
        raise UsageError(f"--users {file}", why=error.strerror or str(error)) from None
    except UnicodeDecodeError:
        raise UsageError(f"--users {file}", why="it is not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        device, colon, password = line.strip().partition(":")
        if not (device and colon and password):
            raise UsageError(
                f"line {number} of {file}",
                why="it is not DEVICE:PASSWORD",
                repair="write one device a line",
            )
        users[device] = password
    if not users:
        raise UsageError(
            f"--users {file}",
            why="it names no device",
            repair="write a DEVICE:PASSWORD line for each",
        )
    return users


def own_url(handle: BrokerHandle) -> str:
    """The broker's address with the aggregator's own credentials."""
    if not handle.username:
        return handle.url
    secret = quote(handle.username, safe="")
    if handle.password:
        secret += ":" + quote(handle.password, safe="")
    return handle.url.replace("://", f"://{secret}@", 1)


def _port_file(state: Path) -> Path:
    return state / "broker" / "port"
