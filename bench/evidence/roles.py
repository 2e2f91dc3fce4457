"""What roles in Shakespeare's plays say, as windows of characters and the character after each."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kellet.sdk.errors import DataError

__all__ = ["ALPHABET", "WINDOW", "Roles", "encoded", "roles", "together", "windows"]

KEPT = Path(__file__).parents[2] / "examples" / "data" / "roles.npz"
# As examples/data/roles.py has it; a character's label is its place here.
ALPHABET = "\n !'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
WINDOW = 16
EVERY, JUDGED_EVERY = 3, 5  # characters from one window to the next

I64 = NDArray[np.int64]
Samples = tuple[I64, I64]
Roles = dict[str, Samples]


@cache
def roles() -> tuple[Roles, Roles]:
    """Return what each role is trained on, the first four fifths, and judged by, the rest.

    x int64 [n, 16] and y int64 [n], 0 to 63. No window reaches from the one into the other.
    """
    try:
        with np.load(KEPT, allow_pickle=False) as stored:
            text, names, lengths = stored["text"], stored["roles"], stored["lengths"]
    except FileNotFoundError:
        raise DataError(
            f"there is no {KEPT}",
            why="the roles are in a source checkout alone",
            repair="run this from a checkout; examples/data/README.md says how it was made",
        ) from None
    trained: Roles = {}
    judged: Roles = {}
    said = np.split(encoded(text.tobytes().decode("ascii")), np.cumsum(lengths)[:-1])
    for index, characters in enumerate(said):
        cut = len(characters) * 4 // 5
        name = f"{index:02}-{names[index].partition('/')[2].replace(' ', '-').replace('.', '')}"
        trained[name] = windows(characters[:cut], EVERY)
        judged[name] = windows(characters[cut:], JUDGED_EVERY)
    return trained, judged


def encoded(text: str) -> I64:
    """Return the places of the characters in the alphabet."""
    places = np.full(128, -1)
    places[[ord(c) for c in ALPHABET]] = np.arange(len(ALPHABET))
    codes: I64 = places[np.frombuffer(text.encode("ascii"), np.uint8)].astype(np.int64)
    assert (codes >= 0).all()
    return codes


def windows(characters: I64, every: int) -> Samples:
    """Return each ``every``-th window of 16 characters, and what comes after it."""
    seen = np.lib.stride_tricks.sliding_window_view(characters[:-1], WINDOW)[::every]
    return np.ascontiguousarray(seen), characters[WINDOW::every]


def together(said: Roles) -> Samples:
    """Return the samples of all roles, one role after the other."""
    x, y = zip(*said.values(), strict=True)
    return np.concatenate(x), np.concatenate(y)
