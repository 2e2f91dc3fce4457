"""FedProx's stragglers: devices that have no time for all epochs, dropped or counted as they are.

Li et al., arXiv 1812.06127, section 5.2: of a round's ten devices a share are stragglers, who get
to 1 to 19 of 20 epochs. FedAvg drops them; FedProx takes what they managed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from bench.evidence import experiment
from bench.evidence.experiment import Experiment, Found, Results
from bench.evidence.fleet import opened
from bench.evidence.pages import drawn, filled
from bench.evidence.synthetic import synthetic, together
from bench.markdown import table
from kellet.sdk.algorithms import FedAvg, make
from kellet.server.simulate import simulate

__all__ = ["EXPERIMENT", "Cell", "Stragglers"]

ASKED = 10
SEEDS = (0, 1, 2)


class Cell(experiment.Cell, frozen=True, kw_only=True):
    """``share`` of a round's devices are stragglers; ``dropped``, or counted as far as they got."""

    plan: str = "synthetic_logistic"
    share: float
    dropped: bool = False
    mu: float = 0.0
    rounds: int = 100
    local_epochs: int = 20
    batch_size: int = 10
    local_lr: float = 0.01
    seed: int = 0

    def __str__(self) -> str:
        what = "dropped" if self.dropped else f"counted, mu {self.mu:g}"
        return f"{self.share:.0%} stragglers, {what}, seed {self.seed}"


class Way(NamedTuple):
    """A line of the table."""

    share: float
    dropped: bool
    mu: float


# Beside each what the authors' own program came to on these data, at round 100.
WAYS = {
    Way(0.0, False, 0.0): ("no stragglers: FedAvg", ".883"),
    Way(0.0, False, 1.0): ("no stragglers: FedProx, mu 1", ""),
    Way(0.5, True, 0.0): ("50 %: dropped (FedAvg)", ""),
    Way(0.5, False, 0.0): ("50 %: counted, mu 0", ""),
    Way(0.5, False, 1.0): ("50 %: counted, mu 1 (FedProx)", ""),
    Way(0.9, True, 0.0): ("90 %: dropped (FedAvg)", ".650"),
    Way(0.9, False, 0.0): ("90 %: counted, mu 0", ".885"),
    Way(0.9, False, 1.0): ("90 %: counted, mu 1 (FedProx)", ".887"),
}


def cells(full: bool) -> list[Cell]:
    """All; in short, ten rounds with 90 % of stragglers, one seed."""
    if not full:
        return [Cell(**way._asdict(), rounds=10) for way in WAYS if way.share > 0.5]
    return [Cell(**way._asdict(), seed=seed) for seed in SEEDS for way in WAYS]


@dataclass(frozen=True)
class Stragglers:
    """Who is asked in each round, and who of them has time for how much: by the seed alone.

    So methods with the same ``seed`` and ``share`` meet the same devices and the same delays.
    """

    seed: int
    share: float
    dropped: bool
    epochs: int

    def cohort(self, round_: int, devices: Sequence[str]) -> list[str]:
        """Ten devices, whatever their size; the first of them are this round's stragglers."""
        drawn = self._draw(round_).permutation(sorted(devices))
        return [str(name) for name in drawn[:ASKED]]

    def manages(self, round_: int, device: str, planned: int) -> int:
        """Steps: all, or those of the epochs that a straggler gets to, or none."""
        late = self.cohort(round_, list(synthetic()[0]))[: round(self.share * ASKED)]
        if device not in late:
            return planned
        if self.dropped:
            return 0
        epochs = self._draw(round_, device).integers(1, self.epochs)
        return planned * int(epochs) // self.epochs

    def _draw(self, *what: object) -> np.random.Generator:
        name = "/".join(map(str, ("stragglers", self.seed, *what)))
        key = hashlib.sha256(name.encode()).digest()[:16]
        return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def algorithm(cell: Cell) -> FedAvg:
    """FedAvg is FedProx with mu 0. Both weigh devices by their samples, as the authors do."""
    return make(
        "fedprox",
        mu=cell.mu,
        local_lr=cell.local_lr,
        local_epochs=cell.local_epochs,
        batch_size=cell.batch_size,
    )


def work(cell: Cell) -> Found:
    """Train; accuracy is that of the devices' tests together."""
    devices, test = synthetic()
    stragglers = Stragglers(cell.seed, cell.share, cell.dropped, cell.local_epochs)
    history = simulate(
        opened(cell.plan),
        devices,
        algorithm(cell),
        rounds=cell.rounds,
        cohort=stragglers.cohort,
        manages=stragglers.manages,
        seed=cell.seed,
        test=together(test),
    )
    accuracies = [record.accuracy or 0.0 for record in history.rounds]
    return {
        "accuracy": accuracies[-1],
        "last_tenth": fmean(accuracies[-cell.rounds // 10 :]),
        "worst_of_last_half": min(accuracies[cell.rounds // 2 :]),
        "counted": fmean(len(record.counted) for record in history.rounds),
        "steps": sum(record.steps for record in history.rounds),
        "accuracies": [round(accuracy, 4) for accuracy in accuracies],
        "digest": history.digest,
    }


def page(results: Results[Cell]) -> str:
    """Return docs/evidence/stragglers.md."""
    return filled(
        "stragglers",
        results,
        table=table(
            ["", "counted a round", "at the end", "last tenth", "worst of last half", "published"],
            _rows(results),
        ),
        findings="\n".join(f"- {line}" for line in _findings(results)),
        seeds=", ".join(str(seed) for seed in sorted({cell.seed for cell in results.found})),
    )


def _rows(results: Results[Cell]) -> Iterator[list[str]]:
    for way, (words, published) in WAYS.items():
        found = list(results.all(**way._asdict()).values())
        if found:
            ends = [f["accuracy"] for f in found]
            yield [
                words,
                f"{fmean(f['counted'] for f in found):.0f}",
                f"{fmean(ends):.3f} ({min(ends):.3f} to {max(ends):.3f})",
                f"{fmean(f['last_tenth'] for f in found):.3f}",
                f"{min(f['worst_of_last_half'] for f in found):.3f}",
                published,
            ]


def _findings(results: Results[Cell]) -> Iterator[str]:
    """Sentences that the cells decide, over the seeds, in the mean of the last tenth of rounds."""
    mean = {
        way: fmean(f["last_tenth"] for f in results.all(**way._asdict()).values())
        for way in WAYS
        if results.all(**way._asdict())
    }
    for share in sorted({way.share for way in mean} - {0.0}):
        dropped, counted, leashed = (
            mean[Way(share, *how)] for how in ((True, 0.0), (False, 0.0), (False, 1.0))
        )
        yield (
            f"With {share:.0%} of stragglers, counting what they managed instead of dropping them "
            f"makes {100 * (counted - dropped):+.1f} points, and mu 1 on top of it "
            f"{100 * (leashed - counted):+.1f}."
        )
    none, late = Way(0.0, False, 0.0), Way(0.9, False, 0.0)
    if none in mean:
        yield (
            f"Counted, 90 % of stragglers make {100 * (mean[late] - mean[none]):+.1f} points "
            "against none."
        )
        leashed = mean[none._replace(mu=1.0)] - mean[none]
        yield f"Without stragglers mu 1 makes {100 * leashed:+.1f} points against FedAvg."


def figure(results: Results[Cell], path: Path) -> None:
    """Accuracy by rounds, a panel a share of stragglers, the mean of the seeds."""
    shares = sorted({way.share for way in WAYS})
    with drawn(path, columns=len(shares)) as axes:
        for panel, share in zip(axes, shares, strict=True):
            for way, (words, _) in WAYS.items():
                found = list(results.all(**way._asdict()).values())
                if way.share == share and found:
                    mean = np.mean([f["accuracies"] for f in found], axis=0)
                    label = words.partition(": ")[2]
                    panel.plot(range(1, len(mean) + 1), mean, label=label)
            panel.set(ylim=(0.3, 1), xlabel="rounds", title=f"{share:.0%} stragglers")
            panel.legend(fontsize=7, loc="lower right")
        axes[0].set(ylabel="accuracy on the devices' tests")


EXPERIMENT = Experiment("stragglers", "Stragglers", Cell, cells, work, page, figure)
