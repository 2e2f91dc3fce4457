"""The checks of arguments that all transports share."""

from __future__ import annotations

from collections.abc import Iterable

from kellet.sdk.errors import LinkError, UsageError, require
from kellet.sdk.transport.base import Will

__all__ = [
    "LONGEST",
    "MOST_KEEPALIVE",
    "check_client",
    "check_filter",
    "check_payload",
    "check_times",
    "check_topic",
    "too_large",
]

LONGEST = 1e8  # s, three years: what clocks and waits can bear
MOST_KEEPALIVE = 65_535  # s, as MQTT has room for
MAX_TOPIC_BYTES = 65_535


def check_topic(topic: str) -> None:
    """Refuse what nobody can publish to. Raises ``UsageError``."""
    _check_text("topic", topic)
    if "+" in topic or "#" in topic:
        raise UsageError(
            f"cannot publish to {topic!r}",
            why="+ and # stand for levels in subscriptions alone",
            repair="name the topic in full",
        )


def check_filter(topic_filter: str) -> None:
    """Refuse what nobody can subscribe to. Raises ``UsageError``."""
    _check_text("topic filter", topic_filter)
    levels = topic_filter.split("/")
    for place, level in enumerate(levels, start=1):
        if "+" in level and level != "+":
            raise _bad_filter(topic_filter, "+ must be a whole level")
        if "#" in level and (level != "#" or place != len(levels)):
            raise _bad_filter(topic_filter, "# must be a whole level, and the last")


def check_payload(payload: bytes) -> bytes:
    """The payload as bytes that nobody can change. Raises ``UsageError`` for other types."""
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise UsageError(
        f"a payload of type {type(payload).__name__}", repair="encode it: a payload is bytes"
    )


def check_times(*, keepalive: int, connect_timeout: float) -> None:
    """Refuse seconds that no link can be kept by. Raises ``UsageError``."""
    require(
        isinstance(keepalive, int) and 1 <= keepalive <= MOST_KEEPALIVE,
        "keepalive",
        keepalive,
        f"a whole number of seconds from 1 to {MOST_KEEPALIVE}",
    )
    require(
        0 < connect_timeout <= LONGEST,
        "connect_timeout",
        connect_timeout,
        f"above 0 and at most {LONGEST:.0f} seconds",
    )


def too_large(topic: str, size: int, limit: int) -> LinkError:
    """The error for a payload that this link cannot carry."""
    return LinkError(
        f"a payload of {size} bytes for {topic}",
        why=f"this link carries at most {max(0, limit)}",
        repair="send it in parts",
    )


def check_client(client_id: str, subscriptions: Iterable[str], will: Will | None) -> list[str]:
    """The checks that every transport makes; returns the filters, each once."""
    if not client_id or "\0" in client_id:
        raise UsageError(
            f"not a client id: {client_id!r}", repair="give each client a name of its own"
        )
    if isinstance(subscriptions, str):
        raise UsageError("subscriptions is one string", repair="pass a list of topic filters")
    filters = list(dict.fromkeys(subscriptions))
    for topic_filter in filters:
        check_filter(topic_filter)
    if will is not None:
        check_topic(will.topic)
    return filters


def _check_text(kind: str, text: str) -> None:
    if not text:
        raise UsageError(f"an empty {kind}", repair="name at least one level")
    if "\0" in text:
        raise UsageError(f"the {kind} {text!r} holds a NUL", repair="remove it")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the {kind} {text!r} has no UTF-8 form", why=error.reason, repair="remove surrogates"
        ) from error
    if size > MAX_TOPIC_BYTES:
        raise UsageError(
            f"a {kind} of {size} bytes", why=f"MQTT allows {MAX_TOPIC_BYTES}", repair="shorten it"
        )


def _bad_filter(topic_filter: str, why: str) -> UsageError:
    return UsageError(
        f"not a topic filter: {topic_filter!r}", why=why, repair="write filters like a/+/c or a/#"
    )
