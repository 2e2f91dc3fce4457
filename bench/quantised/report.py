"""Put a run's results into tables and verdicts, for a terminal and for docs/evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

from bench.markdown import table
from bench.quantised.device import TORCH, Device, relative
from bench.quantised.grid import ALGORITHMS, NEAREST, SCHEMES
from bench.quantised.results import Results, difference, mean

__all__ = ["LARGE", "Verdict", "label", "page", "text", "verdicts"]

LARGE = "five_million"
PAGE = Path(__file__).with_name("page.md")
POINTS, BYTES, SHARE = 0.5, 1.2, 0.5  # the goals


class Verdict(NamedTuple):
    """A goal, what was found, and whether that meets it (None: it was not measured)."""

    goal: str
    what: str
    found: str
    met: bool | None


def label(scheme: str) -> str:
    """Return a scheme as the tables call it."""
    return "w8.row, nearest" if scheme == NEAREST else scheme


def text(results: Results) -> str:
    """Return the tables and verdicts, for a terminal."""
    parts = [f"{task}\n{accuracies(results, task)}" for task in results.tasks()]
    if results.devices:
        parts.append(states(results) + "\n\n" + costs(results))
    return "\n\n".join([*parts, _verdict_table(results)])


def accuracies(results: Results, task: str) -> str:
    """Return a task's accuracy in percent; beside int8, the paired difference to float32."""
    schemes = [s for s in SCHEMES if any(results.of(task, a, s) for a in ALGORITHMS)]
    rows = []
    for name, words in ALGORITHMS.items():
        floats = results.of(task, name, "f32")
        row = [words]
        for scheme in schemes:
            runs = results.of(task, name, scheme)
            if not runs:
                row.append("-")
                continue
            held = [r.accuracy for r in runs if not r.diverged]
            spread = f" ± {100 * stdev(held):.2f}" if len(held) > 1 else ""
            cell = f"{100 * mean(runs):.2f}" if held else ""
            cell += spread if scheme == "f32" else _apart(difference(runs, floats))
            lost = len(runs) - len(held)
            row.append(f"{cell}{'; ' if held else ''}{lost} diverged" if lost else cell)
        rows.append(row)
    return table(["", *map(label, schemes)], rows)


def _apart(points: Sequence[float]) -> str:
    if not points:
        return ""
    if len(points) == 1:
        return f" ({points[0]:+.2f})"
    return f" ({fmean(points):+.2f}; {min(points):+.2f} to {max(points):+.2f})"


def states(results: Results) -> str:
    """Return the bytes of a device's state."""
    rows = []
    for device in results.devices:
        state = device.state
        if state is None:
            continue
        held = (state.y, state.start, state.gradient, state.shift, state.control)
        each = [f"{size / state.parameters:.2f}" for size in held]
        rows.append(
            [device.plan, f"{state.parameters:,}", device.scheme, f"{state.weights:.3f}", *each]
        )
    head = ["plan", "parameters", "scheme", "bytes a weight", "y", "y_0", "gradient", "shift"]
    return table([*head, "c_i at rest"], rows)


def costs(results: Results) -> str:
    """Return peak memory and time a step."""
    rows = []
    for device in results.devices:
        floats = results.device(device.plan, "f32")
        eager = results.device(device.plan, TORCH)
        rows.append(
            [
                device.plan,
                device.scheme,
                f"{device.peak_mb:.1f}",
                f"{device.peak_mb / floats.peak_mb:.2f}" if floats else "-",
                f"{median(device.microseconds):,.0f}",
                f"{relative(device, floats):.2f}" if floats else "-",
                f"{relative(device, eager):.2f}" if eager else "-",
            ]
        )
    head = ["plan", "scheme", "peak MB", "of f32's", "us a step", "of f32's", f"of {TORCH}'s"]
    return table(head, rows)


def verdicts(results: Results) -> list[Verdict]:
    """Return the goals of the tables, and what came of them."""
    found = []
    for task in results.tasks():
        for scheme in SCHEMES[1:]:
            worst = _worst(results, task, scheme)
            if worst is None:
                continue
            points, words = worst
            what, says = f"{task}, {label(scheme)}", f"{points:+.2f} points ({words})"
            if scheme == NEAREST:
                found.append(Verdict("the control: nearest falls behind", what, says, points < -1))
            else:
                goal = f"within {POINTS:g} point of float32"
                found.append(Verdict(goal, what, says, abs(points) <= POINTS))
    held = [d for d in results.devices if d.state and d.scheme != "f32"]
    if held:
        most = max(held, key=lambda d: d.state.weights if d.state else 0.0)
        assert most.state
        weights = most.state.weights
        goal = f"at most {BYTES:g} bytes a weight"
        what = f"{most.plan}, {most.scheme}"
        found.append(Verdict(goal, what, f"{weights:.3f}", weights <= BYTES))
    floats = results.device(LARGE, "f32")
    for device in results.devices if floats else []:
        if device.plan == LARGE and device.state and device.scheme != "f32":
            assert floats
            found.append(_half(device, floats))
    return found


def _worst(results: Results, task: str, scheme: str) -> tuple[float, str] | None:
    """Return the algorithm whose mean difference to float32 is the largest either way.

    Of the control, the one that is furthest behind.
    """
    apart = []
    for name, words in ALGORITHMS.items():
        points = difference(results.of(task, name, scheme), results.of(task, name, "f32"))
        if points:
            apart.append((fmean(points), words))
    if not apart:
        return None
    return min(apart) if scheme == NEAREST else max(apart, key=lambda found: abs(found[0]))


def _half(device: Device, floats: Device) -> Verdict:
    share = device.peak_mb / floats.peak_mb
    return Verdict(
        "a whole process below half of float32's",
        f"{device.plan}, {device.scheme}",
        f"{device.peak_mb:.0f} of {floats.peak_mb:.0f} MB, {share:.2f}",
        share < SHARE,
    )


def _verdict_table(results: Results) -> str:
    says = {True: "met", False: "missed", None: "not measured"}
    rows = [[v.goal, v.what, v.found, says[v.met]] for v in verdicts(results)]
    return table(["goal", "where", "found, at the worst", "verdict"], rows)


def page(results: Results) -> str:
    """Return docs/evidence/quantised.md."""
    known = results.machine
    where = (
        f"{results.date}, {known['processor']} ({known['architecture']}), {known['cores']} cores; "
        + ", ".join(f"{name} {v}" for name, v in results.versions.items())
    )
    settings = [
        [
            task,
            *(f"{value:g}" for value in (s.rounds, s.tail, s.clients, s.alpha, s.local_lr)),
            *(f"{value:g}" for value in (s.local_steps, s.batch_size, s.mu)),
        ]
        for task, s in results.settings.items()
    ]
    head = ["task", "rounds", "tail", "clients", "alpha", "local_lr", "steps", "batch", "mu"]
    return PAGE.read_text(encoding="utf-8").format(
        command=results.command,
        where=where,
        verdicts=_verdict_table(results),
        accuracies="\n\n".join(
            f"### {_TASKS[task]}\n\n{accuracies(results, task)}" for task in results.tasks()
        ),
        settings=table(head, settings),
        states=states(results) if results.devices else "Not measured.",
        costs=costs(results) if results.devices else "Not measured.",
    )


_TASKS = {
    "wisdm": "WISDM, perceptron 43-64-32-6",
    "har": "HAR, Conv1d",
    "mnist": "MNIST at 14 x 14, CNN",
}
