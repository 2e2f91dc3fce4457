"""Hard limits of the wire. Nothing is read before it is known to be within them."""

from __future__ import annotations

from typing import Final, Literal

VERSION: Final[Literal[1]] = 1
CONTROL_BYTES = 4096
HEADER_BYTES = 2048
DEPTH = 6
ITEMS = 256
PART_HEADER = 32
MIN_PART = 1024
MAX_PART = 1 << 20
MAX_BLOB = 1 << 30
MAX_PARTS = 28_000  # of a transfer: their bitmap fits in a control message
MAX_STALE = 64  # rounds that an update may come late
MAX_BINS = 256  # of a histogram
