"""The plans behind the tables: those that ship, and those that a builder makes with torch."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from kellet.sdk.errors import UsageError
from kellet.sdk.plan import BUILTIN_PLANS

__all__ = ["BUILDER", "export", "source"]

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / "examples" / "export" / "evidence_plans.py"
KEPT = ROOT / "build" / "evidence"
# What a plan's bytes depend on, torch aside.
_SOURCES = ("sdk/authoring", "sdk/plan", "sdk/variants")


def source(name: str) -> str:
    """Return what ``Plan.open`` takes for the plan ``name``, which is made where it is absent.

    A plan of the builder's is kept under ``build/evidence`` by the digest of the sources that
    make it. Raises ``UsageError`` where it cannot be made.
    """
    if name in BUILTIN_PLANS:
        return name
    path = KEPT / f"{name}-{_digest()}.kplan"
    if not path.is_file():
        fresh = path.with_suffix(f".{os.getpid()}")
        export("bench.evidence.export", name, fresh)
        fresh.replace(path)
    return str(path)


def export(module: str, name: str, path: Path) -> None:
    """Let ``python -m MODULE NAME PATH`` make a plan: torch stays out of this process.

    Raises ``UsageError`` where that fails, for want of torch above all.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", module, name, path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise UsageError(
            f"the plan {name!r} could not be made",
            why=done.stderr.strip().rpartition("\n")[2],
            repair='pip install -e ".[dev]"; torch makes it',
        )


def _digest() -> str:
    files = [BUILDER, *(f for d in _SOURCES for f in sorted((ROOT / d).glob("*.py")))]
    return hashlib.sha256(b"\0".join(f.read_bytes() for f in files)).hexdigest()[:16]
