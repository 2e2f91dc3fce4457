"""The C header of a target's kernels, out of the table and the reference's docstrings."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterable, Iterator

from kellet.kernels import reference
from kellet.kernels.table import KERNELS, ROOM
from kellet.kernels.targets import TARGETS

__all__ = ["c_header", "c_type"]

_WIDTH = 96

_TOP = """\
/* Kellet's kernels for {target}: {about}.
 *
 * Made by `python -m kellet.kernels.compile --target {target} --header ...`.
 *
 * Arithmetic on flat arrays, with the same bits on every target: no operation
 * is fused or reordered. The functions allocate nothing, keep nothing, call
 * nothing and check nothing:
 *
 * - An array is contiguous and aligned to its elements. Its length stands
 *   behind its name below; that of the first is passed last, and may be 0.
 * - A written array overlaps no other.
 * - Int8 rows are q[n] with a scale a row, scales[rows]. layout is pairs of (rows, their length),
 *   one a segment, which cover both. room is to work in: as long as the longest row, and at least
 *   {room}. first is what the position of q[0] counts as in the hash.
 * - The floating-point environment is C's initial one: rounding to nearest,
 *   denormal numbers kept.
 * - Two calls may run at the same time where neither writes what the other reads.
 */
#ifndef KELLET_KERNELS_H
#define KELLET_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif
"""

_LEVELS = """
/* The x86-64 level in use, 2 to 4; 1 on a processor below x86-64-v2, on which no kernel may be
 * called. */
int32_t kellet_level(void);

/* Use no level above this one, if the processor has it, and return the level then in use. */
int32_t kellet_limit_level(int32_t highest);
"""

_BOTTOM = """
/* The digest of the sources that this was built from, and the processor it was tuned for. */
extern const char kellet_kernels_identity[];

#ifdef __cplusplus
}
#endif

#endif
"""


def c_header(target: str, kernels: Iterable[str] | None = None) -> str:
    """Return the header, in C99, for the kernels (by default all) that a target's file holds."""
    held = tuple(KERNELS if kernels is None else kernels)
    parts = [_TOP.format(target=target, about=TARGETS[target].about, room=ROOM)]
    left_out = [f"kellet_{kernel}" for kernel in KERNELS if kernel not in held]
    if left_out:
        reason = "Not on this target, as they compute in double precision, which it has not: "
        parts.append(_comment([reason + ", ".join(left_out) + "."]))
    parts += [_declaration(kernel) for kernel in held]
    if len(TARGETS[target].builds) > 1:
        parts.append(_LEVELS)
    return "".join([*parts, _BOTTOM])


def c_type(kind: str) -> str:
    """Return C's name of an element type, or of no result."""
    if kind in ("", "f4", "f8"):
        return {"": "void", "f4": "float", "f8": "double"}[kind]
    return f"{'u' if kind[0] == 'u' else ''}int{8 * int(kind[1])}_t"


def _declaration(kernel: str) -> str:
    signature = KERNELS[kernel]
    function = getattr(reference, signature.function)
    names = list(inspect.signature(function).parameters)
    parameters = []
    for i, (name, kind) in enumerate(zip(names, signature.arrays, strict=False)):
        constant = "" if i < signature.writes else "const "
        parameters.append(f"{constant}{c_type(kind)} *{name}")
    scalars = names[len(signature.arrays) :]
    for name, kind in zip(scalars, signature.scalars, strict=True):
        parameters.append(f"{c_type(kind)} {name}")
    lengths = signature.lengths or ("n",) * max(1, len(signature.arrays))
    parameters.append(f"int64_t {lengths[0]}")
    unbroken = ", ".join(parameter.replace(" ", "\0") for parameter in parameters)
    start = f"{c_type(signature.result)} kellet_{kernel}("
    prototype = textwrap.fill(
        unbroken + ");", _WIDTH, initial_indent=start, subsequent_indent="    "
    ).replace("\0", " ")
    shown = [f"{name}[{length}]" for name, length in zip(names, lengths, strict=False)]
    written = ", ".join(shown[: signature.writes]) or "nothing"
    read = ", ".join(shown[signature.writes :]) or "nothing"
    text = inspect.getdoc(function) or ""
    return f"{_comment([*_paragraphs(text), f'Writes {written}; reads {read}.'])}{prototype}\n"


def _paragraphs(docstring: str) -> Iterator[str]:
    """Yield a docstring's paragraphs as plain text that cannot end a comment."""
    for paragraph in docstring.replace("``", "").replace("*/", "* /").split("\n\n"):
        yield " ".join(paragraph.split())


def _comment(paragraphs: list[str]) -> str:
    filled = [
        textwrap.fill(text, _WIDTH, initial_indent=" * ", subsequent_indent=" * ")
        for text in paragraphs
    ]
    return "\n/*" + "\n".join(filled).removeprefix(" *") + "\n */\n"
