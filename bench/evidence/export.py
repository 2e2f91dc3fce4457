"""Make a plan with torch: ``python -m bench.evidence.export NAME FILE``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from bench.evidence.plans import BUILDER, ROOT
from kellet.sdk.plan import BUILTIN_PLANS

__all__ = ["builder", "main"]


def builder(name: str) -> Any:
    """Return the module that makes the plan ``name``; it imports torch."""
    builtin = ROOT / "examples" / "export" / "builtin_plans.py"
    file = builtin if name in BUILTIN_PLANS else BUILDER
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(name: str, file: str) -> None:
    """Write the plan."""
    Path(file).write_bytes(builder(name).make(name).raw)


if __name__ == "__main__":
    main(*sys.argv[1:])
