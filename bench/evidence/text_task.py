"""The next character of what a role in a play says: clients are a hundred such roles."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.evidence import experiment
from bench.evidence.experiment import Experiment, Found, Results
from bench.evidence.fleet import opened
from bench.evidence.pages import drawn, filled
from bench.evidence.roles import roles, together
from bench.markdown import table
from kellet.sdk.algorithms import FedAvg, make
from kellet.server.history import RoundRecord
from kellet.server.metrics import worst_decile
from kellet.server.optimizers import ServerOptimizer
from kellet.server.optimizers import make as make_optimizer
from kellet.server.simulate import simulate

__all__ = ["EXPERIMENT", "Cell"]

SEEDS = (0, 1)
_POINTS = 10  # of a curve


class Cell(experiment.Cell, frozen=True, kw_only=True):
    """``asked`` of the hundred roles in a round; with 0 one client has what all say."""

    plan: str = "next_character"
    algorithm: str = "fedavg"
    local_lr: float = 0.6
    mu: float = 0.0
    warm_start: bool = False
    optimizer: str = ""
    server_lr: float = 1.0
    asked: int = 10
    rounds: int = 150
    local_steps: int = 40
    batch_size: int = 32
    seed: int = 0

    def __str__(self) -> str:
        optimizer = f" with {self.optimizer}" if self.optimizer else ""
        return f"{self.algorithm}{optimizer}, {self.asked} asked, seed {self.seed}"


class Way(NamedTuple):
    """A line of the table: what differs from FedAvg's cell."""

    algorithm: str
    mu: float = 0.0
    warm_start: bool = False
    optimizer: str = ""
    local_lr: float = 0.6
    server_lr: float = 1.0
    asked: int = 10


_FEDAVG = Way("fedavg")
WAYS = {
    _FEDAVG: "FedAvg",
    Way("fedprox", mu=0.01): "FedProx, mu .01",
    Way("scaffold"): "SCAFFOLD",
    Way("scaffold", warm_start=True): "SCAFFOLD, warm start",
    Way("fedavg", optimizer="adam", server_lr=0.01, local_lr=0.3): "FedAdam",
    Way("fedavg", asked=0): "one client with everything",
}


def cells(full: bool) -> list[Cell]:
    """All; in short, FedAvg and FedAdam in a few rounds."""
    if full:
        return [Cell(**way._asdict(), seed=seed) for seed in SEEDS for way in WAYS]
    short = [way for way in WAYS if way.algorithm == "fedavg" and way.asked]
    return [Cell(**way._asdict(), rounds=20, local_steps=20) for way in short]


def algorithm(cell: Cell) -> FedAvg:
    """All weigh roles alike, and all run as many steps in each."""
    return make(
        cell.algorithm,
        local_lr=cell.local_lr,
        local_steps=cell.local_steps,
        batch_size=cell.batch_size,
        weighting="uniform",
        **({"mu": cell.mu} if cell.mu else {}),
        **({"warm_start": True} if cell.warm_start else {}),
    )


def optimizer(cell: Cell) -> ServerOptimizer | None:
    if not cell.optimizer:
        return None
    return make_optimizer(cell.optimizer, server_lr=cell.server_lr)


def work(cell: Cell) -> Found:
    """Train, and judge by what each role says last."""
    trained, judged = roles()
    plan = opened(cell.plan)
    evaluator = plan.evaluator()
    test = together(judged)
    curve: list[tuple[int, float]] = []

    def judge(record: RoundRecord, model: NDArray[np.float32]) -> None:
        if record.round % max(1, cell.rounds // _POINTS) == 0:
            accuracy = evaluator.evaluate(model, *test).accuracy or 0.0
            curve.append((record.round, round(accuracy, 4)))

    history = simulate(
        plan,
        trained if cell.asked else {"all": together(trained)},
        algorithm(cell),
        server_optimizer=optimizer(cell),
        rounds=cell.rounds,
        cohort=cell.asked or None,
        seed=cell.seed,
        on_model=judge,
    )
    found = evaluator.evaluate(history.model, *test)
    each = [evaluator.evaluate(history.model, *judged[name]).accuracy or 0.0 for name in judged]
    last = history.rounds[-1]
    return {
        "accuracy": found.accuracy,
        "loss": found.loss,
        "worst_decile": worst_decile(each),
        "least": min(each),
        "most": max(each),
        "megabytes": (last.uplink_bytes + last.downlink_bytes) / 1e6,
        "drift": fmean(record.drift or 0.0 for record in history.rounds),
        "control_gap": history.control_gap,
        "curve": curve,
        "digest": history.digest,
    }


def page(results: Results[Cell]) -> str:
    """Return docs/evidence/text.md."""
    head = ["", "accuracy", "loss", "worst decile", "least", "most", "drift", "MB"]
    return filled(
        "text",
        results,
        table=table(head, _rows(results)),
        findings="\n".join(f"- {line}" for line in _findings(results)),
        seeds=", ".join(str(seed) for seed in sorted({cell.seed for cell in results.found})),
    )


def _rows(results: Results[Cell]) -> Iterator[list[str]]:
    for way, words in WAYS.items():
        found = list(results.all(**way._asdict()).values())
        if found:
            keys = ("accuracy", "loss", "worst_decile", "least", "most", "drift")
            means = {key: fmean(f[key] for f in found) for key in (*keys, "megabytes")}
            yield [words, *(f"{means[key]:.3f}" for key in keys), f"{means['megabytes']:.0f}"]


def _findings(results: Results[Cell]) -> Iterator[str]:
    """Sentences that the cells decide: each method beside FedAvg, seed by seed."""
    others = {cell.seed: found for cell, found in results.all(**_FEDAVG._asdict()).items()}
    for way, words in WAYS.items():
        found = {cell.seed: found for cell, found in results.all(**way._asdict()).items()}
        if way == _FEDAVG or not way.asked or not found:
            continue
        apart = {
            key: [100 * (f[key] - others[seed][key]) for seed, f in found.items()]
            for key in ("accuracy", "worst_decile")
        }
        each = ", ".join(f"{points:+.1f}" for points in apart["accuracy"])
        yield (
            f"{words}: {fmean(apart['accuracy']):+.1f} points of accuracy against FedAvg (a seed: "
            f"{each}), {fmean(apart['worst_decile']):+.1f} in the worst decile."
        )


def figure(results: Results[Cell], path: Path) -> None:
    """Accuracy by rounds, the mean of the seeds."""
    with drawn(path) as (axes,):
        for way, words in WAYS.items():
            curves = [f["curve"] for f in results.all(**way._asdict()).values()]
            if curves:
                mean = np.mean([[point[1] for point in curve] for curve in curves], axis=0)
                style = "-" if way.asked else ":"
                axes.plot([point[0] for point in curves[0]], mean, style, label=words)
        axes.set(xlabel="rounds", ylabel="next characters that are right")
        axes.legend(fontsize=7)


EXPERIMENT = Experiment("text", "Next character", Cell, cells, work, page, figure)
