"""Two quadratics that disagree, after figure 3 of the SCAFFOLD paper (arXiv 1910.06378)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.evidence import experiment
from bench.evidence.experiment import Experiment, Found, Results
from bench.evidence.fleet import opened
from bench.evidence.pages import drawn, filled
from bench.markdown import table
from kellet.sdk.algorithms import FedAvg, make
from kellet.server.simulate import simulate

__all__ = ["CURVATURES", "EXPERIMENT", "Cell", "clients_of", "exact"]

CURVATURES = (1.5, 0.5)
DISSIMILARITIES = (1.0, 10.0, 100.0)
# What a line of the table is: an algorithm of the product, or one written out in this module.
WAYS = {
    "sgd": "SGD, one step a round",
    "fedavg": "FedAvg",
    "fedprox": "FedProx, mu 1",
    "scaffold": "SCAFFOLD",
    "fedavg/f64": "FedAvg, written out in float64",
    "scaffold/f64": "SCAFFOLD, written out in float64",
    "scaffold/g32": "so, with gradients rounded to float32",
    "scaffold/d32": "so, with c - c_i rounded to float32",
    "scaffold/y32": "so, with models rounded to float32",
}
REFERENCE = {"fedavg": (".22", "2.2", "22"), "scaffold": ("< 4e-15",) * 3}


class Cell(experiment.Cell, frozen=True, kw_only=True):
    """One run from w = 1. ``dissimilarity``: G."""

    plan: str = "quadratic"
    way: str
    dissimilarity: float
    local_steps: int = 10
    local_lr: float = 0.1
    rounds: int = 100

    def __str__(self) -> str:
        return f"{WAYS[self.way]}, G {self.dissimilarity:g}"


def cells(full: bool) -> list[Cell]:
    """All ways at each G; in short, the two that are compared, at one."""
    if full:
        return [Cell(way=way, dissimilarity=g) for way in WAYS for g in DISSIMILARITIES]
    pair = ("fedavg", "scaffold", "scaffold/f64")
    return [Cell(way=way, dissimilarity=10.0) for way in pair]


def clients_of(dissimilarity: float) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Two clients, f(w) = 3/4 w^2 + G w and f(w) = 1/4 w^2 - G w, as samples of half squares.

    The mean of x^2 is 3/2 and 1/2, that of x y is -G and +G, all without rounding.
    """
    first, second = [2.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]
    return {
        name: (np.array(x, np.float32)[:, None], np.full((4, 1), y, np.float32))
        for name, x, y in (
            ("first", first, -dissimilarity),
            ("second", second, 2 * dissimilarity),
        )
    }


def exact(cell: Cell) -> list[float]:
    """|w| after each round in float64: algorithm 1 of the paper, option II, of both clients.

    "g32", "d32", "y32": gradients, c - c_i, or the models alone are rounded to float32.
    """
    gradient, model = (np.float32 if cell.way.endswith(k) else float for k in ("/g32", "/y32"))
    w, c, controls = 1.0, 0.0, [0.0, 0.0]
    slopes = (cell.dissimilarity, -cell.dissimilarity)
    steps, rate = cell.local_steps, cell.local_lr
    errors = []
    for _ in range(cell.rounds):
        ends = []
        for curvature, slope, control in zip(CURVATURES, slopes, controls, strict=True):
            y, shift = w, float(np.float32(c - control))
            for _ in range(steps):
                g = float(gradient(curvature * y + slope))
                corrected = g + shift if cell.way.endswith("/d32") else g - control + c
                y = float(model(y - rate * corrected))
            ends.append(y)
        if cell.way.startswith("scaffold"):
            controls = [
                c_i - c + (w - y) / (steps * rate) for c_i, y in zip(controls, ends, strict=True)
            ]
            c = sum(controls) / 2
        w = float(model(sum(ends) / 2))
        errors.append(abs(w))
    return errors


def algorithm(cell: Cell) -> FedAvg:
    options: dict[str, Any] = {"local_lr": cell.local_lr, "batch_size": 0, "weighting": "uniform"}
    if cell.way == "sgd":
        return make("fedavg", local_steps=1, **options)
    if cell.way == "fedprox":
        options["mu"] = 1.0
    return make(cell.way, local_steps=cell.local_steps, **options)


def work(cell: Cell) -> Found:
    """``error``: |w|, and w = 0 is the optimum of both clients' mean; ``curve``: by rounds."""
    if "/" in cell.way:
        errors = exact(cell)
    else:
        history = simulate(
            opened(cell.plan),
            clients_of(cell.dissimilarity),
            algorithm(cell),
            rounds=cell.rounds,
            keep_models=True,
        )
        errors = [abs(float(model[0])) for model in history.models]
    return {"error": errors[-1], "curve": [float(f"{error:.3g}") for error in errors]}


def errors(results: Results[Cell]) -> str:
    """The table: a way a line, and reference figures below those that they belong to."""
    gs = sorted({cell.dissimilarity for cell in results.found})
    lines = []
    for way, name in WAYS.items():
        found = [results.one(way=way, dissimilarity=g) for g in gs]
        if all(found):
            lines.append([name, *(f"{f['error']:.2g}" for f in found if f)])
        if way in REFERENCE and len(gs) == len(DISSIMILARITIES):
            lines.append([f"*{name}, reference*", *(f"*{f}*" for f in REFERENCE[way])])
    return table(["error after 100 rounds", *(f"G = {g:g}" for g in gs)], lines)


def page(results: Results[Cell]) -> str:
    if set(results.found) == set(cells(False)):
        return errors(results)
    return filled("quadratics", results, errors=errors(results))


def figure(results: Results[Cell], path: Path) -> None:
    """Error by rounds at each G, on a logarithmic axis."""
    ways = ("sgd", "fedavg", "fedprox", "scaffold", "scaffold/f64")
    with drawn(path, columns=len(DISSIMILARITIES)) as axes:
        for panel, g in zip(axes, DISSIMILARITIES, strict=True):
            for way in ways:
                found = results.one(way=way, dissimilarity=g)
                if found:
                    panel.plot(range(1, len(found["curve"]) + 1), found["curve"], label=WAYS[way])
            panel.set(yscale="log", title=f"G = {g:g}", xlabel="rounds")
        axes[0].set(ylabel="|w|, the error")
        axes[0].legend(fontsize=7)


EXPERIMENT = Experiment("quadratics", "Two quadratics", Cell, cells, work, page, figure)
