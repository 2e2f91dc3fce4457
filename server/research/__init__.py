"""The researcher's tool: a pool shared out, runs over settings and seeds, and what came of them.

``kellet simulate`` is a thin command over this::

    from kellet.server.research import Pool, sweep

    came = sweep(
        "my.kplan",
        Pool(x, y, test=(x_test, y_test)),
        settings={"partition": "dirichlet", "clients": 20, "local_steps": 20},
        axes={"alpha": [0.1, 1.0], "algorithm": ["fedavg", "fedprox", "scaffold"]},
        seeds=[0, 1, 2],
        rounds=30,
        out=Path("results"),
    )
    for line in came.table():
        print(line.settings, line.numbers["accuracy"])
"""

from __future__ import annotations

from kellet.server.research.data import Given, People, Pool, Population, Source
from kellet.server.research.judging import Gradients, Judge, Judged, leash
from kellet.server.research.one import Measured, Measures, run
from kellet.server.research.parquet import write_parquet
from kellet.server.research.partitions import Partition
from kellet.server.research.results import Results, read_results
from kellet.server.research.rows import RoundRow, RunRow
from kellet.server.research.settings import Cell, cells
from kellet.server.research.sweep import Sweep, partitioned, sweep
from kellet.server.research.table import Line, Spread, summarised

__all__ = [
    "Cell",
    "Given",
    "Gradients",
    "Judge",
    "Judged",
    "Line",
    "Measured",
    "Measures",
    "Partition",
    "People",
    "Pool",
    "Population",
    "Results",
    "RoundRow",
    "RunRow",
    "Source",
    "Spread",
    "Sweep",
    "cells",
    "leash",
    "partitioned",
    "read_results",
    "run",
    "summarised",
    "sweep",
    "write_parquet",
]
