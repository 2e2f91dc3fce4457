"""A reader of ELF symbol tables, just enough to see what an object file leaves undefined."""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["defined_symbols", "undefined_symbols"]

_SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_UNDEFINED = 0  # SHN_UNDEF


def undefined_symbols(content: bytes) -> list[str]:
    """Return the names that a little-endian ELF64 file expects from elsewhere."""
    return sorted({name for name, section in _symbols(content) if section == _UNDEFINED})


def defined_symbols(content: bytes) -> list[str]:
    """Return the names that a little-endian ELF64 file defines."""
    return sorted({name for name, section in _symbols(content) if section != _UNDEFINED})


def _symbols(content: bytes) -> Iterator[tuple[str, int]]:
    if content[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian ELF64 file")
    (table,) = struct.unpack_from("<Q", content, 40)
    size, count = struct.unpack_from("<HH", content, 58)
    # type, offset, size, link of each section
    sections = [
        (
            struct.unpack_from("<I", content, at + 4)[0],
            *struct.unpack_from("<QQI", content, at + 24),
        )
        for at in range(table, table + size * count, size)
    ]
    for kind, offset, length, link in sections:
        if kind in _SYMBOL_TABLES:
            names = sections[link][1]
            for at in range(offset, offset + length, 24):
                name, _info, _other, section = struct.unpack_from("<IBBH", content, at)
                if name:
                    start = names + name
                    yield content[start : content.index(b"\0", start)].decode(), section
