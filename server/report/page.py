"""The report's page: words, tables and charts, put into ``page.html``."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import Any

from kellet.server.report import charts, markup
from kellet.server.report.drawing import key, shown, styles
from kellet.server.report.record import Curve, Round, Run

__all__ = ["render"]

LATE = 5  # rounds over which a late mean is taken
TASKS = {"wisdm": "WISDM", "har": "UCI HAR"}


def render(run: Run) -> str:
    """The page of a run: HTML that loads nothing."""
    sections = [_algorithms(run), _participation(run), _cost(run), _details(run)]
    return markup.page(
        title=_title(run),
        created=run.created,
        lead=_lead(run),
        facts="".join(markup.fact(*fact) for fact in _facts(run)),
        sections="\n".join(sections),
        footer=_footer(run),
    )


def _title(run: Run) -> str:
    name = shown(run.algorithm)
    if run.kind == "demo":
        task = run.settings["task"]
        return f"{name} on {TASKS.get(task, task)}: a fleet over MQTT"
    return run.title.replace(run.algorithm, name)


def _lead(run: Run) -> str:
    main = run.curves[0]
    closed = sum(r.closed for r in main.rounds)
    text = (
        f"{len(run.devices)} devices trained one model in {closed} rounds, "
        "each on data that stayed with it."
    )
    if run.kind == "demo":
        kills = run.summary["kills"]
        text = (
            f"{len(run.devices)} device processes trained one model in {closed} rounds over a real "
            "MQTT broker, each on its own people&rsquo;s data. "
            f"While they worked, one was killed (<code>kill -9</code>) and started again "
            f"{_count(kills, 'time')}."
        )
    if run.test:
        text += f" The test: {escape(run.test)}."
    return text


def _facts(run: Run) -> list[tuple[str, str, str]]:
    """(value, what it is, good, bad or empty) of each figure at the top."""
    summary, main = run.summary, run.curves[0]
    facts: list[tuple[str, str, str]] = []
    if summary.get("accuracy") is not None:
        facts.append((markup.percent(summary["accuracy"]), "accuracy after the last round", ""))
    gap = summary.get("control_gap")
    if gap is not None:
        what = "control gap: C against the sum of all c<sub>i</sub>, in grid steps"
        facts.append((f"{gap:,}", what, "good" if gap == 0 else "bad"))
    facts.append((f"{summary['updates_counted']:,}", "updates counted, each exactly once", ""))
    if "kills" in summary:
        facts.append((f"{summary['kills']}", "devices killed while at work", ""))
    if summary.get("replayed") is not None:
        same = summary["replayed"]
        what = "model equals its simulation, to the bit"
        facts.append(("yes" if same else "no", what, "good" if same else "bad"))
    facts.append((markup.size(_up_per_update(main)), "uplink for one update", ""))
    if summary.get("device_peak_mb"):
        facts.append((f"{summary['device_peak_mb']:.0f} MB", "peak memory of a device process", ""))
    if "seconds" in summary:
        facts.append((f"{summary['seconds']:.0f} s", "in all, simulations included", ""))
    return facts


def _algorithms(run: Run) -> str:
    compared = _compared(run)
    figures = []
    if any(r.accuracy is not None for curve in compared for r in curve.rounds):
        ends = _each(compared, lambda c: markup.percent(_last(c, "accuracy")))
        figures.append(
            markup.figure(
                "Accuracy on the test set",
                charts.accuracy_chart(run),
                f"After the last round: {ends}.",
            )
        )
    late = _each(compared, lambda c: f"{_late(c, 'drift'):.2f}")
    figures.append(
        markup.figure(
            "Drift of the devices",
            charts.drift_chart(run),
            "How far a device&rsquo;s model moves from the round&rsquo;s, mean over the devices "
            f"counted. In the last {min(LATE, len(compared[0].rounds))} rounds: {late}.",
        )
    )
    if len(compared) < 2:
        return f'<h2>Round by round</h2><div class="pair">{"".join(figures)}</div>'
    intro = (
        "Lines are simulations with the same data, seed, hyperparameters and cohorts as the live "
        "rounds, so they differ by the algorithm alone. Circles are the live fleet."
    )
    return (
        f"<h2>Three algorithms on the same data</h2><p>{intro}</p>"
        f'<div class="pair">{"".join(figures)}</div>{_comparison(compared)}'
    )


def _comparison(curves: Sequence[Curve]) -> str:
    rows = []
    given = styles(curve.algorithm for curve in curves)
    for curve in curves:
        accuracies = [r.accuracy for r in curve.rounds if r.accuracy is not None]
        rows.append(
            (
                key(given[curve.algorithm]) + shown(curve.algorithm),
                markup.percent(accuracies[-1] if accuracies else None),
                markup.percent(max(accuracies, default=None)),
                markup.number(_last(curve, "loss"), 3),
                markup.number(_last(curve, "train_loss"), 3),
                markup.number(curve.rounds[0].drift, 2),
                markup.number(_late(curve, "drift"), 2),
                markup.size(_up_per_update(curve)),
                "" if curve.control_gap is None else f"{curve.control_gap}",
            )
        )
    head = (
        *("", "accuracy, last", "best", "test loss", "training loss"),
        *("drift, first", "drift, late", "uplink an update", "control gap"),
    )
    return f'<div class="sheet" style="margin-top:16px">{markup.table(head, rows)}</div>'


def _participation(run: Run) -> str:
    if not run.devices:
        return ""
    counts = dict.fromkeys(run.devices, 0)
    for r in run.curves[0].rounds:
        for device in r.counted:
            counts[device] = counts.get(device, 0) + 1
    least, most = min(counts.values()), max(counts.values())
    caption = f"Each device was counted in {least} to {most} of {len(run.curves[0].rounds)} rounds."
    if run.events:
        caption += (
            " A bar is a running process; where it is missing the device was dead. An update that "
            "a kill cut off was resumed from the disk, and counted once or answered "
            "&ldquo;too late&rdquo;."
        )
    chart = f'<div class="wide">{charts.participation_chart(run)}</div>'
    return "<h2>Who took part</h2>" + markup.figure("", chart, caption)


def _cost(run: Run) -> str:
    main = run.curves[0]
    updates = sum(len(r.counted) for r in main.rounds)
    up, down = run.summary["uplink_bytes"], run.summary["downlink_bytes"]
    caption = (
        f"{markup.size(up)} from devices and {markup.size(down)} to them in all, payloads as "
        f"devices send and receive them, with what kills wasted; {updates} updates were counted."
    )
    figure = markup.figure("Bytes by round", charts.bytes_chart(run), caption)
    gap = run.summary.get("control_gap")
    if gap is None:
        return f'<h2>What it cost</h2><div class="pair">{figure}</div>'
    return (
        "<h2>What it cost, and whether it adds up</h2>"
        f'<div class="pair">{figure}{_invariant(run, gap)}</div>'
    )


def _invariant(run: Run, gap: int) -> str:
    paragraphs = [
        "The server&rsquo;s control C must be the sum of the devices&rsquo; controls "
        "c<sub>i</sub>. An update that was lost, or counted twice, would show here, and nowhere "
        "in the accuracy. All sums are integers, in steps of <span>2<sup>&minus;48</sup></span>."
    ]
    if run.kind == "demo":
        unsettled = run.summary["unsettled"]
        paragraphs.append(
            "After everything had stopped, each device&rsquo;s control was read from its own disk, "
            f"and C from the aggregator&rsquo;s ledger. The largest difference is "
            f"<strong>{gap}</strong> steps"
            + (f"; {_count(unsettled, 'update')} still waited for a receipt." if unsettled else ".")
        )
    else:
        paragraphs.append(
            f"The largest difference after any round is <strong>{gap}</strong> steps."
        )
    if run.summary.get("replayed"):
        paragraphs.append(
            "Then the rounds were run again in one process, with the devices that the live rounds "
            "had counted. The model came out with the same SHA-256: nothing that kills, restarts "
            "and repeated messages did has left a trace in it."
        )
    text = "".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
    return f"<figure><h3>The invariant</h3>{text}</figure>"


def _details(run: Run) -> str:
    rounds = markup.table(
        (
            "round",
            "asked",
            "counted",
            "accuracy",
            "test loss",
            "training loss",
            "drift",
            "up",
            "down",
        ),
        [_round_row(r) for r in run.curves[0].rounds],
    )
    settings = markup.pairs(run.settings)
    built = markup.pairs(
        run.versions | ({"model": run.curves[0].digest} if run.curves[0].digest else {})
    )
    return (
        "<h2>Settings and versions</h2>"
        f'<div class="pair"><div class="sheet plain">{settings}</div>'
        f'<div class="sheet plain">{built}</div></div>'
        f"<details><summary>All rounds as a table</summary>"
        f'<div class="sheet">{rounds}</div></details>'
    )


def _round_row(r: Round) -> tuple[str, ...]:
    return (
        str(r.round) + ("" if r.closed else " (abandoned)"),
        str(len(r.asked)),
        str(len(r.counted)),
        markup.percent(r.accuracy),
        markup.number(r.loss, 4),
        markup.number(r.train_loss, 4),
        markup.number(r.drift, 3),
        markup.size(r.uplink_bytes),
        markup.size(r.downlink_bytes),
    )


def _footer(run: Run) -> str:
    source = "the aggregator&rsquo;s ledger" if run.kind == "server" else "<code>run.json</code>"
    text = f"Made from {source}; <code>kellet report</code> makes it again."
    if run.kind == "demo":
        text += (
            " When devices are killed depends on the seed, and what that hits on the machine, so "
            "two demos differ; the simulations repeat to the bit."
        )
    return text


def _compared(run: Run) -> list[Curve]:
    return [curve for curve in run.curves if curve.source == "simulated"] or run.curves


def _each(curves: Sequence[Curve], value: Any) -> str:
    return ", ".join(f"{shown(c.algorithm)} {value(c)}" for c in curves)


def _last(curve: Curve, name: str) -> float | None:
    values = [v for r in curve.rounds if (v := getattr(r, name)) is not None]
    return values[-1] if values else None


def _late(curve: Curve, name: str) -> float:
    values = [v for r in curve.rounds if (v := getattr(r, name)) is not None]
    return fmean(values[-LATE:]) if values else float("nan")


def _up_per_update(curve: Curve) -> float:
    """Uplink bytes for each counted update, of the round that wasted least."""
    each = [r.uplink_bytes / len(r.counted) for r in curve.rounds if r.counted]
    return min(each, default=0.0)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
