"""Topics of one fleet, and who speaks on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, partial

from kellet.sdk.errors import UsageError

__all__ = ["Address", "Topics", "check_id"]

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REMEMBERED = 4096  # topics


def check_id(what: str, value: str) -> str:
    """``value`` if it may stand in a topic, else ``UsageError``."""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise UsageError(
            f"{what} {value!r} cannot be used",
            why="it stands in topics, where 1 to 64 of the characters A-Z a-z 0-9 _ - are allowed",
            repair="choose another",
        )
    return value


@dataclass(frozen=True, slots=True)
class Address:
    """What a topic says: the channel, and whose it is."""

    channel: str  # "round", "blob", "state", "req", "ctl" or "up"
    device: str = ""
    sha256: bytes = b""
    part: int = -1


class Topics:
    """The topics of one fleet (docs/protocol.md)."""

    def __init__(self, fleet: str) -> None:
        self.fleet = check_id("fleet", fleet)
        self._root = f"kellet/1/{fleet}/"
        self.round = self._root + "pub/round"
        # One filter for all blobs, in force while some are needed: a broker may keep
        # something for each filter that it has ever seen.
        self.blobs = self._root + "pub/blob/+/+"
        self._parse = lru_cache(_REMEMBERED)(partial(_parse, self._root))

    def blob(self, sha256: bytes, part: int) -> str:
        return f"{self._root}pub/blob/{sha256.hex()}/{part}"

    def state(self, device: str) -> str:
        return f"{self._root}d/{device}/state"

    def req(self, device: str) -> str:
        return f"{self._root}d/{device}/req"

    def ctl(self, device: str) -> str:
        return f"{self._root}d/{device}/ctl"

    def up(self, worker: str, device: str) -> str:
        return f"{self._root}w/{worker}/{device}/up"

    def device_filters(self, device: str) -> tuple[str, ...]:
        """What a device listens to, beside the blobs it needs."""
        return (self.round, self.ctl(check_id("device", device)))

    def server_filters(self, worker: str) -> tuple[str, ...]:
        """What an aggregator worker listens to."""
        return (
            self._root + "d/+/req",
            self._root + "d/+/state",
            f"{self._root}w/{check_id('worker', worker)}/+/up",
        )

    def parse(self, topic: str) -> Address | None:
        """Who speaks where; None for a topic that is not this fleet's."""
        return self._parse(topic)


def _parse(root: str, topic: str) -> Address | None:
    if not topic.startswith(root):
        return None
    match topic[len(root) :].split("/"):
        case ["pub", "round"]:
            return Address("round")
        case ["pub", "blob", sha, part] if len(sha) == 64 and part.isdigit():
            try:
                return Address("blob", sha256=bytes.fromhex(sha), part=int(part))
            except ValueError:
                return None
        case ["d", device, ("state" | "req" | "ctl") as channel] if _ID.fullmatch(device):
            return Address(channel, device)
        case ["w", _, device, "up"] if _ID.fullmatch(device):
            return Address("up", device)
    return None
