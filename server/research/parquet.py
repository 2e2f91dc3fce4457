"""A sweep's rows as Parquet, beside the JSON lines. Needs the extra ``research``."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from kellet.sdk.errors import ExtraMissing
from kellet.server.research.rows import RoundRow, RunRow, flat

__all__ = ["check_installed", "write_parquet"]


def check_installed() -> None:
    """Raise ``ExtraMissing`` now, and not after the sweep, where pyarrow is absent."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ExtraMissing("research", "pyarrow")


def write_parquet(folder: Path, runs: Sequence[RunRow], rounds: Sequence[RoundRow]) -> list[Path]:
    """Write ``runs.parquet`` and ``rounds.parquet``, whole or not at all; their paths.

    A column a field, and one for each setting, ``settings.alpha``; a setting that a run does
    not have is null. Raises ``ExtraMissing``.
    """
    check_installed()
    import pyarrow.parquet

    written = []
    for name, rows in (("runs", runs), ("rounds", rounds)):
        path, draft = folder / f"{name}.parquet", folder / f"{name}.parquet.draft"
        pyarrow.parquet.write_table(_table(rows), draft)
        os.replace(draft, path)
        written.append(path)
    return written


def _table(rows: Sequence[Struct]) -> Any:
    import pyarrow

    records = [flat(row) for row in rows]
    names = list(dict.fromkeys(name for record in records for name in record))
    columns = {name: [record.get(name) for record in records] for name in names}
    return pyarrow.table({name: _column(values) for name, values in columns.items()})


def _column(values: Sequence[Any]) -> Sequence[Any]:
    """One type for a column: numbers stay numbers; where kinds are mixed all are text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {float, int} or len(kinds) <= 1:
        return [float(v) if v is not None and float in kinds else v for v in values]
    return [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
