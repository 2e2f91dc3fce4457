"""A supervised Mosquitto with generated configuration, users, access rules and TLS."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kellet.sdk.errors import LinkError, UsageError
from kellet.server.brokers.child import Child, start_child
from kellet.server.brokers.handle import BrokerHandle

__all__ = ["TlsFiles", "open_mosquitto"]

LOOPBACK = "127.0.0.1"
PART_SIZE = 64 << 10
ADMISSION_BYTES = 32 << 20
MAX_PACKET = 1 << 20
SERVER_USER = "kellet-server"
ELSEWHERE = ["/usr/sbin", "/usr/local/sbin"]

_USER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HASH_ROUNDS = 101  # mosquitto_passwd's own

# What a device may do; %u is its user name. The topics are those of docs/protocol.md.
_DEVICE_RULES = """
pattern read kellet/1/+/pub/#
pattern read kellet/1/+/d/%u/ctl
pattern write kellet/1/+/d/%u/req
pattern write kellet/1/+/d/%u/state
pattern write kellet/1/+/w/+/%u/up
"""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for the broker: its certificate (with any intermediate ones) and its key."""

    cert_file: Path
    key_file: Path


def open_mosquitto(
    folder: Path,
    *,
    host: str | None,
    port: int | None,
    admission_bytes: int | None,
    users: Mapping[str, str] | None,
    tls: TlsFiles | None,
) -> BrokerHandle:
    """Start Mosquitto.

    ``users`` maps a device's id to its password; with it, every client needs
    credentials, and a device can publish and read under its own id alone.
    Without it Mosquitto lets anyone in, and so listens on loopback alone. With
    ``tls`` devices connect encrypted on ``port``; this machine uses a plain
    listener on loopback.

    Raises ``LinkError`` where Mosquitto is missing, the port is taken or it
    does not start, ``UsageError`` for what would be unsafe.
    """
    host = LOOPBACK if host is None else host
    local = host in (LOOPBACK, "localhost", "::1")
    if users is None and not local:
        raise UsageError(
            f"Mosquitto on {host} without users",
            why="anyone on the network could speak for any device",
            repair="give users, or listen on 127.0.0.1",
        )
    program = find_mosquitto()
    admission = ADMISSION_BYTES if admission_bytes is None else admission_bytes
    password: str | None = None
    if users is not None:
        if SERVER_USER in users:
            raise UsageError(
                f"a device named {SERVER_USER}",
                why="the aggregator uses that name",
                repair="rename the device",
            )
        password = secrets.token_urlsafe(24)
        _write_private(folder / "passwords", password_text({**users, SERVER_USER: password}))
        _write_private(folder / "rules", rules_text())
    config = folder / "mosquitto.conf"
    addresses: list[tuple[str, int | None]] = [(host, port)]
    if tls is not None:
        addresses.append((LOOPBACK, None))  # unencrypted, for this machine alone

    def listeners(ports: list[int]) -> list[_Listener]:
        first, *others = ports
        return [_Listener(host, first, tls), *(_Listener(LOOPBACK, each, None) for each in others)]

    def make(ports: list[int]) -> Child:
        config.write_text(config_text(folder, listeners(ports), users is not None, admission))
        arguments = ["exec", program, "-c", str(config)]
        return Child("mosquitto", arguments, ports=ports, log_file=folder / "mosquitto.log")

    child, ports = start_child(make, addresses)
    url = listeners(ports)[-1].url
    return BrokerHandle(
        kind="mosquitto",
        url=url,
        public_url=listeners(ports)[0].public_url,
        url_v311=url,
        part_size=PART_SIZE,
        admission_bytes=admission,
        username=None if users is None else SERVER_USER,
        password=password,
        _child=child,
    )


def find_mosquitto() -> str:
    """The program's path. Debian puts it where users' PATH does not lead."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *ELSEWHERE])
    program = shutil.which("mosquitto", path=path)
    if program is None:
        raise LinkError(
            "Mosquitto cannot be started",
            why="the program is not installed",
            repair="apt install mosquitto, or use --broker embedded",
        )
    return program


@dataclass(frozen=True, slots=True)
class _Listener:
    host: str
    port: int
    tls: TlsFiles | None

    @property
    def url(self) -> str:
        """Where this machine reaches it; a listener on all addresses, by loopback."""
        return self._url(LOOPBACK)

    @property
    def public_url(self) -> str:
        """Where others reach it; a listener on all addresses, by this machine's name."""
        return self._url(socket.gethostname())

    def _url(self, anywhere: str) -> str:
        scheme = "mqtt" if self.tls is None else "mqtts"
        name = anywhere if self.host in ("0.0.0.0", "::") else self.host
        return f"{scheme}://{f'[{name}]' if ':' in name else name}:{self.port}"


def config_text(
    folder: Path, listeners: list[_Listener], with_users: bool, admission_bytes: int
) -> str:
    """Mosquitto's configuration file."""
    lines = [
        "persistence false",
        # Both bounds hold: enough for what admission lets through, with room for control messages.
        "max_queued_messages 20000",
        f"max_queued_bytes {2 * admission_bytes + (8 << 20)}",
        "max_inflight_messages 20",
        "set_tcp_nodelay true",  # else each small answer waits 40 ms for an acknowledgement
        f"max_packet_size {MAX_PACKET}",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "connection_messages false",
        f"allow_anonymous {'false' if with_users else 'true'}",
    ]
    if os.geteuid() == 0:
        lines.append("user root")  # else it gives root up, and cannot read its own files here
    if with_users:
        lines += [f"password_file {folder / 'passwords'}", f"acl_file {folder / 'rules'}"]
    for each in listeners:
        lines.append(f"listener {each.port} {each.host}")
        if each.tls is not None:
            lines += [
                f"certfile {each.tls.cert_file.absolute()}",
                f"keyfile {each.tls.key_file.absolute()}",
            ]
    return "\n".join(lines) + "\n"


def rules_text() -> str:
    """Mosquitto's access rules: all of Kellet for the aggregator, its own topics for a device."""
    return f"user {SERVER_USER}\ntopic readwrite kellet/1/#\n{_DEVICE_RULES}"


def password_text(users: Mapping[str, str]) -> str:
    """Mosquitto's password file: PBKDF2 with SHA-512, as mosquitto_passwd writes it."""
    lines = []
    for name, password in users.items():
        if not _USER.fullmatch(name):
            raise UsageError(
                f"not a user name: {name!r}",
                why="it stands in topics, where only A-Z a-z 0-9 _ - may",
                repair="use the device's id",
            )
        if not password:
            raise UsageError(f"an empty password for {name}", repair="give each user one")
        salt = secrets.token_bytes(12)
        digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _HASH_ROUNDS, 64)
        parts = (base64.b64encode(piece).decode() for piece in (salt, digest))
        lines.append(f"{name}:$7${_HASH_ROUNDS}${'$'.join(parts)}")
    return "\n".join(lines) + "\n"


def _write_private(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
