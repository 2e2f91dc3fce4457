"""A reader of symbol tables, just enough to see what an object file leaves undefined.

ELF of 32 and 64 bits, Mach-O of 64 bits and WebAssembly, all little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

__all__ = ["defined_symbols", "undefined_symbols"]

Symbols = Iterator[tuple[str, bool]]


def undefined_symbols(content: bytes) -> list[str]:
    """Return the names that an object, library or module expects from elsewhere."""
    return sorted({name for name, defined in _symbols(content) if not defined})


def defined_symbols(content: bytes) -> list[str]:
    """Return the names that it defines for others: of a WebAssembly module, its exports."""
    return sorted({name for name, defined in _symbols(content) if defined})


def _symbols(content: bytes) -> Symbols:
    """Yield the name of each symbol that is not local, and whether it is defined.

    Raises ValueError for a file of another kind.
    """
    for magic, read in _READERS.items():
        if content.startswith(magic):
            return read(content)
    raise ValueError("not a little-endian ELF, 64-bit Mach-O or WebAssembly file")


def _text(content: bytes, start: int) -> str:
    return content[start : content.index(b"\0", start)].decode()


def _elf(content: bytes) -> Symbols:
    wide = content[4] == 2
    (table,) = struct.unpack_from("<Q" if wide else "<I", content, 40 if wide else 32)
    size, count = struct.unpack_from("<HH", content, 58 if wide else 46)
    sections = []
    for at in range(table, table + size * count, size):
        (kind,) = struct.unpack_from("<I", content, at + 4)
        place = struct.unpack_from("<QQI" if wide else "<III", content, at + (24 if wide else 16))
        sections.append((kind, *place))
    for kind, offset, length, link in sections:
        if kind not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
            continue
        names = sections[link][1]
        for at in range(offset, offset + length, 24 if wide else 16):
            (name,) = struct.unpack_from("<I", content, at)
            info, _other, section = struct.unpack_from("<BBH", content, at + (4 if wide else 12))
            if name and info >> 4 != 0:  # STB_LOCAL
                yield _text(content, names + name), section != 0  # SHN_UNDEF


def _mach_o(content: bytes) -> Symbols:
    (count,) = struct.unpack_from("<I", content, 16)
    at = 32
    for _ in range(count):
        command, size = struct.unpack_from("<II", content, at)
        if command == 2:  # LC_SYMTAB
            table, length, names, _ = struct.unpack_from("<IIII", content, at + 8)
            for entry in range(table, table + 16 * length, 16):
                name, kind = struct.unpack_from("<IB", content, entry)
                if kind & 0x01:  # N_EXT
                    # C's names begin with an underscore; N_TYPE is N_UNDF where undefined.
                    yield _text(content, names + name).removeprefix("_"), bool(kind & 0x0E)
        at += size


def _wasm(content: bytes) -> Symbols:
    """Yield a module's imported and exported functions; an object's undefined ones are imports."""
    at = 8
    while at < len(content):
        section = content[at]
        size, at = _leb(content, at + 1)
        if section in (2, 7):  # imports, exports
            count, entry = _leb(content, at)
            for _ in range(count):
                if section == 2:
                    _module, entry = _name(content, entry)
                name, entry = _name(content, entry)
                if content[entry] == 0:  # a function
                    yield name, section == 7
                skip = _after_imported if section == 2 else _after_exported
                entry = skip(content, entry)
        at += size


def _after_imported(content: bytes, at: int) -> int:
    """Return the place after what an import is: a function, table, memory or global."""
    kind, at = content[at], at + 1
    if kind in (1, 3):
        at += 1  # the type of the table's elements, or of the global
    has_most = kind in (1, 2) and content[at] & 1  # limits: flags, the least, perhaps the most
    if kind in (1, 2):
        _least, at = _leb(content, at + 1)
    if kind in (0, 3) or has_most:
        _, at = _leb(content, at)
    return at


def _after_exported(content: bytes, at: int) -> int:
    return _leb(content, at + 1)[1]  # its kind and index


def _name(content: bytes, at: int) -> tuple[str, int]:
    length, at = _leb(content, at)
    return content[at : at + length].decode(), at + length


def _leb(content: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned LEB128 number at a place, and the place after it."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


_READERS: dict[bytes, Callable[[bytes], Symbols]] = {
    b"\x7fELF\x01\x01": _elf,
    b"\x7fELF\x02\x01": _elf,
    b"\xcf\xfa\xed\xfe": _mach_o,
    b"\0asm": _wasm,
}
