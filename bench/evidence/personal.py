"""Personal models on 36 people's phones: what each person gets, and the four who get least."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bench.evidence import experiment
from bench.evidence.experiment import Experiment, Found, Results
from bench.evidence.fleet import opened
from bench.evidence.pages import COLOURS, drawn, filled
from bench.markdown import table
from kellet.sdk.algorithms import make
from kellet.sdk.tasks import task
from kellet.server.metrics import worst_decile
from kellet.server.simulate import simulate

__all__ = ["EXPERIMENT", "Cell", "people"]

# A line of the table: (algorithm, personal models, what it is called).
WAYS = (
    ("scaffold", "ditto:0", "each person's data alone"),
    ("scaffold", "ditto:0.01", "Ditto, lambda .01"),
    ("scaffold", "ditto:0.1", "Ditto, lambda .1"),
    ("scaffold", "ditto:0.3", "Ditto, lambda .3"),
    ("scaffold", "ditto:1", "Ditto, lambda 1"),
    ("scaffold", "finetune", "fine-tuned, 1 epoch"),
    ("scaffold", "finetune,epochs=5", "fine-tuned, 5 epochs"),
    ("fedavg", "ditto:0.1", "Ditto, lambda .1"),
    ("perfedavg", "finetune:1", "1 step at alpha"),
    ("perfedavg", "finetune", "fine-tuned, 1 epoch"),
)
SHARED = {
    "scaffold": "SCAFFOLD's model, the same for all",
    "fedavg": "FedAvg's model, the same for all",
    "perfedavg": "Per-FedAvg's model, as it comes",
}
NAMES = {(algorithm, own): f"{algorithm}, {name}" for algorithm, own, name in WAYS}
# The same three as measured before, elsewhere: mean and worst decile.
REFERENCE = {"shared": (0.787, 0.469), "ditto:0": (0.834, 0.571), "ditto:0.1": (0.861, 0.701)}


class Cell(experiment.Cell, frozen=True, kw_only=True):
    """One run of all 36. ``personal``: as the command takes it."""

    plan: str = "wisdm"
    algorithm: str = "scaffold"
    personal: str
    rounds: int = 60
    local_lr: float = 0.1
    local_steps: int = 8
    batch_size: int = 16
    alpha: float = 0.1
    holdout: float = 0.2
    seed: int = 0

    def __str__(self) -> str:
        return f"{NAMES.get((self.algorithm, self.personal), self.personal)}, seed {self.seed}"


def cells(full: bool) -> list[Cell]:
    """All ways, three seeds each; in short, three of them for fewer rounds."""
    if full:
        return [Cell(algorithm=a, personal=p, seed=s) for s in range(3) for a, p, _ in WAYS]
    return [Cell(personal=p, rounds=10) for p in ("ditto:0", "ditto:0.1")]


def people(seed: int) -> dict[str, Any]:
    """Each person's windows, under a name of the seed: who is called otherwise holds out others."""
    wisdm = task("wisdm")
    return {f"seed-{seed}-user-{user}": wisdm.load_user(user) for user in wisdm.users}


def work(cell: Cell) -> Found:
    """Accuracies on each person's own held-out windows: of the fleet's model, and of theirs."""
    more = {"alpha": cell.alpha} if cell.algorithm == "perfedavg" else {}
    algorithm = make(
        cell.algorithm,
        local_lr=cell.local_lr,
        local_steps=cell.local_steps,
        batch_size=cell.batch_size,
        **more,
    )
    history = simulate(
        opened(cell.plan),
        people(cell.seed),
        algorithm,
        rounds=cell.rounds,
        personal=cell.personal,
        holdout=cell.holdout,
        seed=cell.seed,
    )
    clients = history.clients.values()
    shared = [client.global_accuracy or 0.0 for client in clients]
    personal = [client.personal_accuracy or 0.0 for client in clients]
    return {
        "global_mean": float(np.mean(shared)),
        "global_worst": worst_decile(shared),
        "personal_mean": float(np.mean(personal)),
        "personal_worst": worst_decile(personal),
        "global": [round(value, 4) for value in shared],
        "personal": [round(value, 4) for value in personal],
    }


def by_person(found: list[Found], model: str) -> list[float]:
    """Each person's accuracy, the mean over the seeds: over other held-out windows each time."""
    return [float(value) for value in np.mean([each[model] for each in found], axis=0)]


def _line(name: str, found: list[Found], model: str) -> list[str]:
    each = [worst_decile(one[model]) for one in found]
    people_ = by_person(found, model)
    return [
        name,
        f"{np.mean(people_):.3f}",
        f"{np.mean(each):.3f}",
        f"{min(each):.3f} to {max(each):.3f}",
        f"{worst_decile(people_):.3f}",
    ]


def accuracies(results: Results[Cell]) -> str:
    """The table: a model a line, the reference below it."""
    lines = []
    for algorithm, name in SHARED.items():
        # Personal models leave the fleet's alone: each of the runs of a seed has the same.
        one = {cell.seed: found for cell, found in results.all(algorithm=algorithm).items()}
        if not one:
            continue
        lines.append(_line(name, list(one.values()), "global"))
        if algorithm == "scaffold":
            lines.append(_reference("shared"))
        for of, own, title in WAYS:
            found = list(results.all(algorithm=algorithm, personal=own).values())
            if of != algorithm or not found:
                continue
            lines.append(_line(f"- {title}", found, "personal"))
            if algorithm == "scaffold" and own in REFERENCE:
                lines.append(_reference(own))
    heads = ["model", "mean client", "worst decile", "of the seeds", "of people's means"]
    return table(heads, lines)


def _reference(name: str) -> list[str]:
    mean, worst = REFERENCE[name]
    return ["*reference*", f"*{mean:.3f}*", f"*{worst:.3f}*", "", ""]


def page(results: Results[Cell]) -> str:
    return filled("personal", results, accuracies=accuracies(results))


def figure(results: Results[Cell], path: Path) -> None:
    """Every person's accuracy, from the worst off to the best, and the sweep over lambda."""
    curves = (
        ("ditto:0.1", "global", "SCAFFOLD's model"),
        ("ditto:0", "personal", "own data alone"),
        ("ditto:0.1", "personal", "Ditto, lambda .1"),
        ("finetune", "personal", "fine-tuned, 1 epoch"),
    )

    def found(own: str) -> list[Found]:
        return list(results.all(algorithm="scaffold", personal=own).values())

    with drawn(path, columns=2) as (people_, swept):
        for own, model, label in curves:
            if found(own):
                each = sorted(by_person(found(own), model))
                people_.plot(range(1, len(each) + 1), each, label=label)
        people_.set(xlabel="people, the worst off first", ylabel="accuracy, mean over the seeds")
        people_.legend(fontsize=7)
        lams = [lam for lam in ("0", "0.01", "0.1", "0.3", "1") if found(f"ditto:{lam}")]
        for index, (name, label) in enumerate((("mean", "mean"), ("worst", "worst decile"))):
            means = [
                np.mean([one[f"personal_{name}"] for one in found(f"ditto:{lam}")]) for lam in lams
            ]
            swept.plot(range(len(lams)), means, marker="o", color=COLOURS[index], label=label)
        swept.set(xlabel="Ditto's lambda", ylabel="accuracy", xticks=range(len(lams)))
        swept.set_xticklabels(lams)
        swept.legend(fontsize=7)


EXPERIMENT = Experiment("personal", "Personal models", Cell, cells, work, page, figure)
