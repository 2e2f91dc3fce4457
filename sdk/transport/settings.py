"""What one MQTT connection needs to know, checked once; and why a connection ended."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import paho.mqtt

from kellet.sdk.errors import LinkError, UsageError
from kellet.sdk.transport.base import Will
from kellet.sdk.transport.checks import check_times
from kellet.sdk.transport.url import BrokerUrl, parse_url

__all__ = ["Failure", "LinkSettings", "check_link", "check_paho", "explain", "tls_context"]

Version = Literal["5", "3.1.1"]

OLDEST_PAHO = (2, 2)


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """One connection to a broker.

    ``window`` is the number of QoS 1 publications on the wire at once, each
    way; the byte bounds are over what the broker has not acknowledged yet.
    """

    url: BrokerUrl
    client_id: str
    username: str | None
    password: str | None
    tls: ssl.SSLContext | None
    will: Will | None
    keepalive: int
    versions: tuple[Version, ...]
    max_payload: int | None
    max_inflight: int
    max_inflight_bytes: int
    bulk_window_bytes: int
    connect_timeout: float
    backoff: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no link. ``final``: trying again would end the same way."""

    why: str
    repair: str
    final: bool = False

    def error(self, url: BrokerUrl) -> LinkError:
        """The failure as something to raise."""
        what = f"the broker at {url} refuses this client" if self.final else f"no link to {url}"
        return LinkError(what, why=self.why, repair=self.repair)


def check_paho(version: str = paho.mqtt.__version__) -> None:
    """Refuse a paho-mqtt whose callbacks and reconnection differ. Raises ``LinkError``."""
    numbers = []
    for piece in version.split(".")[:2]:
        digits = "".join(letter for letter in piece if letter.isdigit())
        numbers.append(int(digits or 0))
    if tuple(numbers) < OLDEST_PAHO:
        raise LinkError(
            f"paho-mqtt {version} is too old",
            why="its callbacks differ, and Kellet is written for 2.2 and newer",
            repair='pip install "paho-mqtt>=2.2"',
        )


def check_link(
    url: str,
    *,
    keepalive: int,
    connect_timeout: float,
    ca_file: Path | str | None = None,
    cert_file: Path | str | None = None,
    key_file: Path | str | None = None,
) -> None:
    """Refuse, without opening anything, what no broker could make right. Raises ``UsageError``.

    A device and an aggregator ask this before they touch their state.
    """
    check_times(keepalive=keepalive, connect_timeout=connect_timeout)
    paths = [None if file is None else Path(file) for file in (ca_file, cert_file, key_file)]
    tls_context(parse_url(url), *paths)


def tls_context(
    url: BrokerUrl, ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> ssl.SSLContext | None:
    """The TLS settings for ``url``, or None for plain ``mqtt``.

    Without ``ca_file`` the system's authorities are trusted. Raises
    ``UsageError`` for files that are missing, unreadable or no certificates.
    """
    given = [file for file in (ca_file, cert_file, key_file) if file is not None]
    if not url.tls:
        if given:
            raise UsageError(
                f"certificates were given for {url}",
                why="mqtt:// is not encrypted",
                repair="write mqtts:// in the address",
            )
        return None
    if key_file is not None and cert_file is None:
        raise UsageError(
            "a key file without a certificate",
            why="the two belong together",
            repair="give cert_file too",
        )
    for file in given:
        if not file.is_file():
            raise UsageError(f"no such file: {file}", repair="give the path of a PEM file")
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            "the TLS files cannot be used",
            why=str(error),
            repair="give PEM files: the authority's certificate, and this client's with its key",
        ) from error
    context.sslsocket_class = _TlsSocket
    return context


class _TlsSocket(ssl.SSLSocket):
    """Closes itself where the handshake fails; paho would leave that to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


def explain(error: Exception, url: BrokerUrl) -> Failure:
    """What an error while connecting means, and what to do about it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure(
            f"its certificate is not trusted ({error.verify_message})",
            "give the authority's certificate as ca_file; the name in the address must be in the "
            "certificate, and this machine's clock must be right",
        )
    if isinstance(error, ssl.SSLError) or (url.tls and isinstance(error, ConnectionResetError)):
        reason = getattr(error, "reason", None) or error.strerror
        return Failure(
            f"the TLS handshake failed ({reason})",
            f"check that port {url.port} speaks TLS; for a plain port write mqtt://",
        )
    if isinstance(error, socket.gaierror):
        return Failure(f"the name {url.host!r} is not known ({error.strerror})", "check the name")
    if isinstance(error, ConnectionRefusedError):
        return Failure(
            "connection refused", f"start the broker, or check that {url.port} is its port"
        )
    if isinstance(error, TimeoutError):
        return Failure("no answer in time", "check address, port and firewall")
    if isinstance(error, OSError) and error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return Failure(f"{url.host} is unreachable", "check this machine's network")
    return Failure(str(error) or type(error).__name__, "check address and port")
