"""Control messages to bytes and back, within the limits (docs/protocol.md, rule 4)."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

import msgpack
import msgspec

from kellet.sdk.errors import ProtocolError
from kellet.sdk.protocol import limits

__all__ = ["VersionMismatch", "pack", "read", "unpack", "unpack_again"]


class VersionMismatch(ProtocolError):
    """The message speaks a major version that is not ours."""


def pack(message: msgspec.Struct, *, limit: int = limits.CONTROL_BYTES) -> bytes:
    """The message as a msgpack map. ``ProtocolError`` where it exceeds ``limit`` bytes."""
    raw = msgspec.msgpack.encode(message)
    if len(raw) > limit:
        raise ProtocolError(
            f"a {type(message).__name__} of {len(raw)} bytes",
            why=f"control messages carry at most {limit}",
            repair="shorten its texts",
        )
    return raw


def _no_duplicates(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    for key, _ in pairs:
        if type(key) is not str:
            raise ProtocolError("a key that is not text")
    out = dict(pairs)
    if len(out) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ProtocolError(f"the key {twice!r} twice")
    return out


_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})


def _check_tree(tree: dict[str, Any] | list[Any], depth: int) -> None:
    """``depth``: of what lies in ``tree``. msgpack makes exactly these types."""
    if tree and depth > limits.DEPTH:
        raise ProtocolError(f"a message nested deeper than {limits.DEPTH}")
    for item in tree.values() if isinstance(tree, dict) else tree:
        kind = type(item)
        if kind is dict or kind is list:
            _check_tree(item, depth + 1)
        elif kind not in _PLAIN:
            # ExtType and Timestamp: msgpack reads them even where a hook refuses the others.
            raise ProtocolError("an extension type in a message")


def read(raw: bytes | memoryview, *, limit: int = limits.CONTROL_BYTES) -> dict[str, Any]:
    """The map in ``raw``, checked against every limit but not against a schema.

    Raises ``ProtocolError`` on anything but one msgpack map within the limits.
    """
    if len(raw) > limit:
        raise ProtocolError(f"a message of {len(raw)} bytes", why=f"the limit is {limit}")
    try:
        value = msgpack.unpackb(
            raw,
            raw=False,
            object_pairs_hook=_no_duplicates,
            max_array_len=limits.ITEMS,
            max_map_len=limits.ITEMS,
            max_ext_len=0,
        )
    except ProtocolError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError("bytes that are no message", why=str(error)[:120]) from None
    if not isinstance(value, dict):
        raise ProtocolError("a message that is no map")
    _check_tree(value, 2)
    return value


def unpack(raw: bytes | memoryview, kind: Any, *, limit: int = limits.CONTROL_BYTES) -> Any:
    """The message of type (or union) ``kind`` in ``raw``; unknown keys are ignored.

    Raises ``VersionMismatch`` for another major version and ``ProtocolError`` for
    anything else that is not such a message.
    """
    value = read(raw, limit=limit)
    version = value.get("v")
    if version != limits.VERSION:
        raise VersionMismatch(
            f"a message of version {version!r:.40}",
            why=f"this side speaks {limits.VERSION} to {limits.VERSION}",
            repair="update the older side",
        )
    try:
        # Bytes are bytes: by default a text would be taken for their base64.
        return msgspec.convert(value, kind, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise ProtocolError("a message that does not fit its schema", why=str(error)) from None


@lru_cache(8)
def unpack_again(raw: bytes, kind: Any) -> Any:
    """The same for what a fleet in one process receives as often as it has devices.

    Not to be changed in any part: all who ask for it are given the same message.
    """
    return unpack(raw, kind)
