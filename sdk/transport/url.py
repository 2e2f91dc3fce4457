"""The address of a broker: ``mqtt://[user:password@]host[:port]``, or ``mqtts://`` for TLS."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from kellet.sdk.errors import UsageError

__all__ = ["BrokerUrl", "parse_url"]

DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}

_OTHER_NAMES = {"tcp": "mqtt", "ssl": "mqtts", "tls": "mqtts", "mqtt+ssl": "mqtts"}


@dataclass(frozen=True, slots=True)
class BrokerUrl:
    """A broker's address, taken apart. Its text form leaves the credentials out."""

    scheme: str
    host: str
    port: int
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "mqtts"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_url(text: str) -> BrokerUrl:
    """Take ``text`` apart. Raises ``UsageError`` with the repair for anything else.

    The port defaults to 1883 (``mqtt``) or 8883 (``mqtts``). User and password
    may be percent-encoded; no message ever repeats them.
    """
    scheme, separator, rest = text.strip().partition("://")
    scheme = scheme.lower()
    if not separator:
        raise _bad("the scheme is missing", "write mqtt://HOST:PORT, or mqtts:// for TLS")
    if scheme in _OTHER_NAMES:
        raise _bad(
            f"the scheme {scheme!r} is not ours", f"write {_OTHER_NAMES[scheme]}://HOST:PORT"
        )
    if scheme in ("ws", "wss"):
        raise _bad("MQTT over WebSocket is not spoken here", "use the broker's mqtt:// port")
    if scheme not in DEFAULT_PORTS:
        raise _bad(f"unknown scheme {scheme!r}", "write mqtt://HOST:PORT, or mqtts:// for TLS")
    try:
        parts = urlsplit("//" + rest)
        host = parts.hostname
    except ValueError as error:
        raise _bad(str(error), "put IPv6 addresses in brackets: mqtt://[::1]:1883") from None
    if not host or any(letter.isspace() for letter in host):
        raise _bad("the host is missing", f"write {scheme}://HOST:PORT")
    try:
        port = DEFAULT_PORTS[scheme] if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not 1 <= port <= 65_535:
        raise _bad(
            f"the port of {host} is not a number from 1 to 65535",
            f"{scheme} is usually at {DEFAULT_PORTS[scheme]}",
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment or "?" in rest or "#" in rest:
        raise _bad(
            f"something follows the port of {host}",
            "leave path, query and fragment out; percent-encode / ? # in passwords",
        )
    username, password = parts.username, parts.password
    if password is not None and not username:
        raise _bad("a password without a user", "write mqtt://USER:PASSWORD@HOST:PORT")
    return BrokerUrl(
        scheme=scheme,
        host=host,
        port=port,
        username=unquote(username) if username else None,
        password=unquote(password) if password is not None else None,
    )


def _bad(why: str, repair: str) -> UsageError:
    return UsageError("not the address of an MQTT broker", why=why, repair=repair)
