"""How people spell a codec: ``f32``, ``q8``, and ``topk:0.05`` with its share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from kellet.sdk.errors import UsageError

__all__ = ["codec_of", "no_share"]

_Name = TypeVar("_Name", bound=str)


def codec_of(setting: str, text: str, known: Sequence[_Name]) -> tuple[_Name, float]:
    """The codec that ``text`` spells, of those ``known``, and its share; 0 for all but topk.

    ``setting`` is named in the ``UsageError`` for any other text.

    >>> codec_of("uplink", "topk:0.05", ("f32", "q8", "topk"))
    ('topk', 0.05)
    """
    word, colon, number = text.strip().partition(":")
    found = next((name for name in known if name == word), None)
    if found is None or (colon and word != "topk"):
        wanted = [f"{name}:SHARE" if name == "topk" else name for name in known]
        raise UsageError(
            f"{setting} = {text!r}",
            why=f"it must be {', '.join(wanted[:-1])} or {wanted[-1]}",
            repair="name one of these",
        )
    if word != "topk":
        return found, 0.0
    try:
        share = float(number)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(
            f"{setting} = {text!r}",
            why="topk sends a share of the elements, above 0 and at most 1",
            repair="say it as in topk:0.05",
        )
    return found, share


def no_share(share: float | None) -> None:
    """Raise ``UsageError`` for a share that stands apart from its codec."""
    if share is not None:
        raise UsageError(
            f"share = {share:g}",
            why="a share stands with its codec",
            repair=f"write topk:{share:g} where topk is named, and leave this out",
        )
