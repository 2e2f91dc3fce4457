"""The page of a sweep: its table, its curves, and what it was run with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from kellet.server.report import markup, sweep_charts
from kellet.server.report.drawing import key, shown, styles
from kellet.server.report.record import now, versions
from kellet.server.research.names import text
from kellet.server.research.rows import RoundRow, RunRow
from kellet.server.research.sweep import Sweep
from kellet.server.research.table import Line, Spread, summarised

__all__ = ["render"]

PANELS = 12  # whose curves are drawn; the table has all

# Settings that say what the data is like: each of their values has curves of its own.
_OF_DATA = ("partition", "alpha", "percent", "labels", "clients", "least", "feature")
_TABLE = (
    ("accuracy, last", "accuracy", 3),
    ("best", "best_accuracy", 3),
    ("loss", "loss", 3),
    ("PR-AUC", "pr_auc", 3),
    ("ROC-AUC", "roc_auc", 3),
    ("client mean", "client_accuracy", 3),
    ("worst tenth", "client_worst", 3),
    ("drift", "drift_mean", 2),
    ("largest", "drift_max", 2),
    ("of G/&mu;", "of_bound", 2),
    ("own models", "personal_accuracy", 3),
    ("worst tenth of these", "personal_worst", 3),
    ("rounds to target", "rounds_to_target", 1),
    ("MB up", "up_mb", 2),
    ("MB down", "down_mb", 2),
    ("seconds", "wall_seconds", 1),
)
_CHARTS = (
    ("accuracy", "accuracy, %", "round", 100.0, "Accuracy on the test set"),
    ("client_worst", "accuracy, %", "round", 100.0, "Accuracy over the worst tenth of the clients"),
    ("pr_auc", "PR-AUC", "round", 1.0, "Area under the precision-recall curve"),
    ("drift_mean", "drift, ||y - x||", "round", 1.0, "Drift of the clients, mean"),
    ("accuracy", "accuracy, %", "mb", 100.0, "Accuracy by what has travelled"),
)


def render(sweep: Sweep) -> str:
    """The page of a sweep: HTML that loads nothing."""
    lines = summarised(sweep.runs)
    return markup.page(
        title=f"{sweep.configuration['plan'].partition(' ')[0]}: {len(lines)} settings compared",
        created=now(),
        lead=_lead(sweep, lines),
        facts="".join(markup.fact(*fact) for fact in _facts(sweep)),
        sections="\n".join([_results(sweep, lines), _curves(sweep), _details(sweep)]),
        footer="Made from the rows of <code>kellet simulate --sweep</code>; with --out, "
        "<code>kellet report DIR</code> makes it again.",
    )


def _lead(sweep: Sweep, lines: Sequence[Line]) -> str:
    seeds = sweep.configuration["seeds"]
    clients = sorted({row.clients for row in sweep.runs})
    fleet = f"{clients[0]} clients" if len(clients) == 1 else f"{clients[0]} to {clients[-1]}"
    return (
        f"{len(lines)} settings, each run for {sweep.configuration['rounds']} rounds over {fleet}, "
        f"with {len(seeds)} seed{'s' if len(seeds) > 1 else ''} ({escape(text(seeds))}). A seed "
        "decides the split of the data, the cohorts and the batches; runs of one seed share them."
    )


def _facts(sweep: Sweep) -> list[tuple[str, str, str]]:
    failed = sum(row.state == "failed" for row in sweep.runs)
    gaps = [row.control_gap for row in sweep.runs if row.control_gap is not None]
    facts = [
        (f"{len(sweep.runs)}", "runs", ""),
        (f"{sum(row.rounds for row in sweep.runs):,}", "rounds in all", ""),
        (f"{sum(row.wall_seconds for row in sweep.runs):.0f} s", "in all runs, by the clock", ""),
    ]
    if failed:
        facts.append((str(failed), "runs whose models became infinite", "bad"))
    if gaps:
        what = "control gap in the worst run: C against the sum of all c<sub>i</sub>"
        facts.append((f"{max(gaps)}", what, "good" if max(gaps) == 0 else "bad"))
    return facts


def _results(sweep: Sweep, lines: Sequence[Line]) -> str:
    names = _told(lines)
    columns = [column for column in _TABLE if any(line.numbers[column[1]] for line in lines)]
    methods = styles(_method(line.settings, names) for line in lines)
    rows = [
        (
            key(methods[_method(line.settings, names)]) + shown(line.settings["algorithm"]),
            *(_setting(line.settings, name) for name in names),
            f"{line.runs}" if not line.failed else f"{line.runs - line.failed} of {line.runs}",
            *(_spread(line.numbers[name], digits, line) for _, name, digits in columns),
        )
        for line in lines
    ]
    head = (
        "",
        *(escape(_worded(name)) for name in names),
        "runs",
        *(title for title, _, _ in columns),
    )
    target = sweep.configuration.get("target_accuracy")
    held = sweep.configuration.get("holdout")
    judged = f"the {held:.0%} of their samples that they hold out" if held else "their own data"
    intro = (
        "Means over the seeds, with the least and the greatest where there are several. Accuracy, "
        "loss and areas are of the last model on the test set, &ldquo;best&rdquo; is of the round "
        "with the highest accuracy there. Clients are judged by the server&rsquo;s model on "
        f"{judged}; the worst tenth is the mean over the worst-off tenth of them. Drift is "
        "||y<sub>i</sub> &minus; x||, over all rounds; &ldquo;of G/&mu;&rdquo; is the largest "
        "drift as a part of FedProx&rsquo;s bound."
    )
    if target is not None:
        intro += (
            f" The target is an accuracy of {target:g}; (n) says how many runs reached it, where "
            "not all did, and the mean is over these."
        )
    return (
        f'<h2>What came of it</h2><p>{intro}</p><div class="sheet">{markup.table(head, rows)}</div>'
    )


def _curves(sweep: Sweep) -> str:
    names = _told(summarised(sweep.runs))
    rounds: dict[str, list[RoundRow]] = {}
    for row in sweep.rounds:
        rounds.setdefault(row.cell, []).append(row)
    panels: dict[str, dict[str, list[list[RoundRow]]]] = {}
    for run in sweep.runs:
        if run.state == "finished":
            panel = panels.setdefault(_panel(run, names), {})
            panel.setdefault(_method(run.settings, names), []).append(rounds[run.cell])
    methods = styles(_method(run.settings, names) for run in sweep.runs)
    parts = []
    for number, (title, by_method) in enumerate(list(panels.items())[:PANELS]):
        lines = [sweep_charts.Line(name, runs) for name, runs in by_method.items()]
        figures = [
            markup.figure(
                caption,
                sweep_charts.chart(
                    f"p{number}-{value}-{by}", lines, value,
                    label=label, by=by, scale=scale, given=methods,
                ),
                "Mean over the seeds; the band is their range.",
            )
            for value, label, by, scale, caption in _CHARTS
            if any(getattr(row, value) is not None for line in lines for row in line.runs[0])
        ]  # fmt: skip
        heading = f"<h2>{escape(title) or 'Round by round'}</h2>"
        parts.append(f'{heading}<div class="pair">{"".join(figures)}</div>')
    if len(panels) > PANELS:
        parts.append(f"<p>{len(panels) - PANELS} more are in the table alone.</p>")
    return "".join(parts)


def _details(sweep: Sweep) -> str:
    columns = [
        (t, n, d) for t, n, d in _TABLE if any(getattr(r, n) is not None for r in sweep.runs)
    ]
    runs = markup.table(
        ("run", "state", *(title for title, _, _ in columns), "model"),
        [
            (
                escape(row.cell),
                row.state,
                *(markup.number(getattr(row, name), digits) for _, name, digits in columns),
                f"<code>{row.model[:12]}</code>",
            )
            for row in sweep.runs
        ],
    )
    failures = "".join(
        f"<p>{escape(row.cell)}: {escape(row.why)}</p>" for row in sweep.runs if row.why
    )
    given = {
        name: json.dumps(value) if isinstance(value, (dict, list)) else value
        for name, value in sweep.configuration.items()
        if value is not None
    }
    return (
        "<h2>Settings and versions</h2>"
        f'<div class="pair"><div class="sheet plain">{markup.pairs(given)}</div>'
        f'<div class="sheet plain">{markup.pairs(versions())}</div></div>'
        f'{failures}<details><summary>All runs as a table</summary><div class="sheet">{runs}</div>'
        "</details>"
    )


def _told(lines: Sequence[Line]) -> list[str]:
    """The settings that differ from line to line, the algorithm aside."""
    names = dict.fromkeys(name for line in lines for name in line.settings if name != "algorithm")
    return [n for n in names if len({text(line.settings.get(n)) for line in lines}) > 1]


def _is_data(name: str) -> bool:
    return name.removeprefix("partition.") in _OF_DATA and not name.startswith("algorithm.")


def _method(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    """How a line of a chart is called: the algorithm, and what of it was swept."""
    of_method = [name for name in names if name in settings and not _is_data(name)]
    more = [f"{_worded(name)} {text(settings[name])}" for name in of_method]
    return ", ".join([shown(settings["algorithm"]), *more])


def _panel(run: RunRow, names: Sequence[str]) -> str:
    """What charts a run belongs to: the settings of its data that were swept."""
    return ", ".join(
        f"{_worded(name)} {text(run.settings[name])}"
        for name in names
        if name in run.settings and _is_data(name)
    )


def _worded(name: str) -> str:
    return name.rpartition(".")[2].replace("_", " ")


def _setting(settings: Mapping[str, Any], name: str) -> str:
    return escape(text(settings[name])) if name in settings else ""


def _spread(found: Spread | None, digits: int, line: Line) -> str:
    if found is None:
        return ""
    runs = line.runs - line.failed
    shown_ = f"{found.mean:.{digits}f}"
    if found.of < runs:
        shown_ += f" ({found.of})"
    if found.of > 1 and found.least != found.greatest:
        shown_ += f"<br><small>{found.least:.{digits}f} &ndash; {found.greatest:.{digits}f}</small>"
    return shown_
