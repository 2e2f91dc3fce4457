"""The page and the figure of the Dirichlet sweep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from bench.evidence.detection import SKEWED_BY, detection
from bench.evidence.experiment import Found, Results
from bench.evidence.pages import drawn, filled
from bench.markdown import table

__all__ = ["figure", "page"]

TASKS = {"fraud": "Card transactions, 15 features", "annthyroid": "Annthyroid, 21 features"}
MODELS = {"logistic": "logistic regression", "mlp": "perceptron with 32 hidden units"}
SKEWS = ("label", "feature")
ALPHAS = (0.1, 0.5, 1.0)


class Way(NamedTuple):
    """A line of the tables."""

    algorithm: str
    mu: float = 0.0


class Setting(NamedTuple):
    """What the ways are compared under."""

    data: str
    model: str
    skew: str
    alpha: float


FEDAVG, MU_0, SCAFFOLD = Way("fedavg"), Way("fedprox"), Way("scaffold")
WAYS = {
    FEDAVG: "FedAvg",
    MU_0: "FedProx, mu 0",
    Way("fedprox", 0.01): "FedProx, mu .01",
    Way("fedprox", 2.0): "FedProx, mu 2",
    Way("fedprox", 50.0): "FedProx, mu 50",
    SCAFFOLD: "SCAFFOLD",
}


def page(results: Results[Any]) -> str:
    """Return docs/evidence/dirichlet.md."""
    solved = results.one(data="fraud", algorithm="newton")
    seeds = sorted({cell.seed for cell in results.found})
    return filled(
        "dirichlet",
        results,
        features=", ".join(f"{words} in {name}" for name, (_, words) in SKEWED_BY.items()),
        scarce=", ".join(
            f"{int(detection(name).y.sum())} positives of {len(detection(name).y):,} in {name}"
            for name in SKEWED_BY
        ),
        seeds=f"seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else "one seed",
        findings="\n".join(f"- {line}" for line in _findings(results)),
        tables="\n\n".join(_tables(results)),
        newton=f"{short(solved['pr_auc'])} and {short(solved['roc_auc'])}" if solved else "-",
    )


def _of(results: Results[Any], setting: Setting, way: Way) -> list[Found]:
    """Return what came of the seeds."""
    return list(results.all(**setting._asdict(), **way._asdict()).values())


def _settings(results: Results[Any]) -> list[Setting]:
    every = (
        Setting(data, model, skew, alpha)
        for data in TASKS
        for model in MODELS
        for skew in SKEWS
        for alpha in ALPHAS
    )
    return [setting for setting in every if _of(results, setting, FEDAVG)]


def _tables(results: Results[Any]) -> Iterator[str]:
    settings = _settings(results)
    for data, words in TASKS.items():
        for model, what in MODELS.items():
            mine = [s for s in settings if (s.data, s.model) == (data, model)]
            if not mine:
                continue
            yield f"### {words}: {what}"
            head = ["PR-AUC", "ROC-AUC", "loss"]
            yield table(["together", *head], _together(results, data, model))
            head = ["alpha", *head, "MB", "drift", "largest", "bound"]
            for skew in SKEWS:
                rows = [row for s in mine if s.skew == skew for row in _rows(results, s)]
                if rows:
                    yield table([f"{skew} skew", *head], rows)


def _together(results: Results[Any], data: str, model: str) -> Iterator[list[str]]:
    for name, words in (("newton", "solved"), ("fedavg", "1,000 steps")):
        found = list(results.all(data=data, model=model, algorithm=name, clients=1).values())
        if found:
            yield [words, *(_spread(found, key) for key in ("pr_auc", "roc_auc", "loss"))]


def _rows(results: Results[Any], setting: Setting) -> Iterator[list[str]]:
    for way, words in WAYS.items():
        found = _of(results, setting, way)
        if found and way != MU_0:
            bound = fmean(f["steepest"] for f in found) / way.mu if way.mu else None
            yield [
                words,
                f"{setting.alpha:g}",
                *(_spread(found, key) for key in ("pr_auc", "roc_auc", "loss")),
                f"{fmean(f['megabytes'] for f in found):.3f}",
                f"{fmean(f['drift'] for f in found):.3f}",
                f"{max(f['drift_max'] for f in found):.3f}",
                f"{bound:.3g}" if bound is not None else "-",
            ]


def _findings(results: Results[Any]) -> Iterator[str]:
    """Sentences that the cells decide."""
    settings = _settings(results)
    for way, words in WAYS.items():
        for skew in SKEWS:
            mine = [s for s in settings if s.skew == skew]
            if mine and way not in (FEDAVG, MU_0):
                yield f"{words}, {skew} skew: {_against(results, mine, way)}"
    pairs = [(_of(results, s, FEDAVG), _of(results, s, MU_0)) for s in settings]
    same = [a[0]["digest"] == b[0]["digest"] for a, b in pairs if b]
    yield (
        f"FedProx with mu 0 is FedAvg bit for bit: {sum(same)} of {len(same)} last models have "
        "the same digest."
    )
    shares: dict[float, float] = {}
    for cell, found in results.all(algorithm="fedprox").items():
        if cell.mu:
            share = found["drift_max"] * cell.mu / found["steepest"]
            shares[cell.mu] = max(share, shares.get(cell.mu, 0.0))
    told = ", ".join(f"{share:.1%} of it at mu {mu:g}" for mu, share in sorted(shares.items()))
    yield f"The largest drift came to {told}, over all runs: the bound {_held(shares.values())}."


def _held(shares: Iterable[float]) -> str:
    return "held in each" if max(shares) <= 1 else "did not hold"


def _against(results: Results[Any], settings: list[Setting], way: Way) -> str:
    """One way's PR-AUC and loss beside FedAvg's, over the settings."""
    points: dict[float, list[float]] = {}
    lower = 0
    for setting in settings:
        ours, others = _of(results, setting, way), _of(results, setting, FEDAVG)
        more = fmean(f["pr_auc"] for f in ours) - fmean(f["pr_auc"] for f in others)
        points.setdefault(setting.alpha, []).append(more)
        lower += fmean(f["loss"] for f in ours) < fmean(f["loss"] for f in others)
    each = ", ".join(f"{fmean(of):+.3f} at alpha {alpha:g}" for alpha, of in points.items())
    every = [point for of in points.values() for point in of]
    return (
        f"PR-AUC {each} against FedAvg, over data and models ({min(every):+.3f} to "
        f"{max(every):+.3f}); a lower loss in {lower} of {len(every)} settings."
    )


def _spread(found: list[Found], key: str) -> str:
    values = [f[key] for f in found]
    half = (max(values) - min(values)) / 2
    return short(fmean(values)) + (f" ± {short(half)}" if half >= 5e-4 else "")


def short(value: float) -> str:
    """Three decimals, without the nought before them."""
    return f"{value:.3f}".removeprefix("0")


def figure(results: Results[Any], path: Path) -> None:
    """PR-AUC over alpha: the logistic regression's in full lines, the perceptron's in broken."""
    panels = [(data, skew) for data in TASKS for skew in SKEWS]
    with drawn(path, columns=len(panels)) as axes:
        for panel, (data, skew) in zip(axes, panels, strict=True):
            for model, style in zip(MODELS, ("-", "--"), strict=True):
                panel.set_prop_cycle(None)
                for way in WAYS:
                    if way != MU_0:
                        _line(panel, results, Setting(data, model, skew, 0), way, style)
            for found in results.all(data=data, algorithm="newton").values():
                panel.axhline(found["pr_auc"], color="black", lw=0.8, ls=":")
            panel.set(xscale="log", ylim=(0, 1), xlabel="alpha", title=f"{data}, {skew} skew")
            panel.set_xticks(ALPHAS, [f"{alpha:g}" for alpha in ALPHAS])
            panel.minorticks_off()
        axes[0].set(ylabel="PR-AUC; dotted: logistic, solved together")
        axes[0].legend(fontsize=7)


def _line(panel: Any, results: Results[Any], setting: Setting, way: Way, style: str) -> None:
    found = {alpha: _of(results, setting._replace(alpha=alpha), way) for alpha in ALPHAS}
    there = {alpha: fmean(f["pr_auc"] for f in of) for alpha, of in found.items() if of}
    label = WAYS[way] if style == "-" else None
    panel.plot(list(there), list(there.values()), style, marker="o", ms=2.5, label=label)
