"""Run a batch of kernel calls (``support.foreign``) with the installed library.

From standard input to standard output, as ``runner.c`` does; the argument is the kernels' names
in the batch's order, as a JSON list.
"""

from __future__ import annotations

import json
import struct
import sys

import numpy as np

from kellet.kernels._backend import active
from kellet.kernels.table import KERNELS


def word(kind: str, at: memoryview) -> int | float:
    value: int | float = np.frombuffer(at, kind, 1)[0].item()
    return value


def main() -> None:
    names = json.loads(sys.argv[1])
    backend = active()
    assert backend.name == "compiled"
    room = memoryview(bytearray(sys.stdin.buffer.read()))
    at = 8
    while at < len(room):
        kernel = names[struct.unpack_from("<q", room, at)[0]]
        signature = KERNELS[kernel]
        at += 16
        scalars = []
        for kind in signature.scalars:
            scalars.append(word(kind, room[at : at + 8]))
            at += 8
        result_at = at
        at += 8
        arrays = []
        for kind in signature.arrays:
            (size,) = struct.unpack_from("<q", room, at)
            arrays.append(np.frombuffer(room[at + 8 : at + 8 + size], kind))
            at += 8 + -(-size // 8) * 8
        result = backend.bind(kernel, tuple(arrays))(*scalars)
        if signature.result:
            raw = np.asarray(result, signature.result).tobytes()
            room[result_at : result_at + len(raw)] = raw
    sys.stdout.buffer.write(room)


if __name__ == "__main__":
    main()
