"""An environment for each peer, of its own: what one needs is not what another brings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kellet.sdk.errors import UsageError

__all__ = ["REQUIREMENTS", "python_of"]

ROOT = Path(__file__).parents[2]
WHERE = ROOT / "build" / "peers"

# torch is pinned to the version that Kellet's own environment has: the nets are the same.
_TORCH = "torch==2.13.0"
REQUIREMENTS = {
    "flwr": (_TORCH, "flwr[simulation]==1.42.0"),
    "pfl": (_TORCH, "pfl[pytorch]==0.6.0"),
}


def python_of(peer: str) -> Path:
    """The Python of a peer's environment, which is made where it is absent. ``UsageError``."""
    folder = WHERE / peer
    python, made = folder / "bin" / "python", folder / "kellet-requirements.txt"
    wanted = "\n".join(REQUIREMENTS[peer]) + "\n"
    if made.is_file() and made.read_text() == wanted:
        return python
    if sys.version_info >= (3, 13):
        raise UsageError(
            f"no environment for {peer} with Python {sys.version_info.major}."
            f"{sys.version_info.minor}",
            why="pfl needs Python below 3.13, and all sides are to have the same",
            repair="run this with Python 3.11 or 3.12",
        )
    print(f"making {folder}: {', '.join(REQUIREMENTS[peer])}", file=sys.stderr)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[peer]],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UsageError(
                f"the environment of {peer} could not be made",
                why=(done.stderr or done.stdout).strip().rpartition("\n")[2],
                repair=f"pip install {' '.join(REQUIREMENTS[peer])} says more",
            )
    made.write_text(wanted)
    return python
