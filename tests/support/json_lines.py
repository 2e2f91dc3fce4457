"""Rows that a command kept as JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["rows"]


def rows(path: Path) -> list[dict[str, Any]]:
    """A file of JSON lines; what a clock decides is left out."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "wall_seconds"} for line in lines]
