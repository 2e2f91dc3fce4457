"""The page of the comparison, and its tables."""

from __future__ import annotations

from bench.markdown import table
from bench.peers.measure import SIDES
from bench.peers.results import GOALS, Compared, Results, ratio

__all__ = ["page", "tables"]

_MB = 1e6


def tables(results: Results) -> str:
    """A table a problem, and the ratios beside the goals."""
    parts = [_sides(compared) for compared in results.problems.values()]
    return "\n\n".join([*parts, _goals(results)])


def page(results: Results) -> str:
    """The whole page, in Markdown."""
    at = results.machine
    names = ", ".join(f"{name} {value}" for name, value in results.versions.items())
    apart = max(max(compared.apart.values()) for compared in results.problems.values())
    missed = sum(not reached for *_, reached in _ratios(results))
    held = (
        "All goals are reached."
        if not missed
        else f"{missed} of {len(_ratios(results))} goals are missed."
    )
    return f"""# Kellet's simulation beside flwr's and pfl's

    python -m bench.peers --full

{held} Measured {results.date} on {at["processor"]}, {at["cores"]} cores, {at["system"]}. The
load of the machine was {results.load[0]} when it began and {results.load[1]} when it ended, the
comparison's own included. {results.repeats} runs of each side, by turns; the median of a run's
rounds, and of the runs the median with the least and the greatest. {names}.

All sides train the same net from the same parameters on the same clients: 10 clients a round, 20
steps of 16 samples at a rate of .05, plain SGD, a uniform mean. The frameworks draw cohorts
and batches each in its own way, from the same seeds. Before anything is timed, each trains one
round of all clients, two steps on all of their samples: the models differ by {apart:.1g} at most
(1e-5 is allowed). Evaluation is switched off on all sides.

{tables(results)}

![Seconds a round and peak memory](peers.svg)

What is not the same:

- Kellet's clients keep what a device keeps (a control variate's place, an outbox, receipts in
  SQLite), say everything over an in-memory broker in the bytes that would travel, and each update
  is digested, checked and counted once in a ledger, as over MQTT. Neither peer does any of that.
- Kellet takes gradients with onnxruntime and runs single-threaded, pfl and flwr with torch. pfl
  runs with one thread, the CNN with two as well, and its faster form is compared; flwr with two
  actors, one a core, of one thread each.
- pfl's users hold exactly 20 batches, cut beforehand from their shuffled samples: it neither
  shuffles nor gathers during a round. Kellet and flwr shuffle each epoch.
- "First" is the time from the start of the process to the end of the first round: imports,
  reading the data, starting workers.
- RSS adds up the pages of all processes of a side; those that several share count for each. PSS
  shares them out. Both are the greatest of looks five times a second.
"""


def _sides(compared: Compared) -> str:
    head = ("", "ms a round", "rounds a second", "first, s", "RSS, MB", "PSS, MB")
    rows = [
        (
            name,
            f"{1000 * timed.seconds.median:.1f} ({1000 * timed.seconds.least:.1f} to "
            f"{1000 * timed.seconds.greatest:.1f})",
            f"{1 / timed.seconds.median:.1f}",
            f"{timed.first.median:.1f}",
            f"{timed.rss / _MB:.0f}",
            f"{timed.pss / _MB:.0f}",
        )
        for name, timed in compared.sides.items()
    ]
    return f"**{compared.title}**\n\n{table(head, rows)}"


def _goals(results: Results) -> str:
    head = ("", "peer", "rounds of Kellet's to one of its", "goal", "")
    rows = [
        (title, peer, f"{found:.2f}", f"{goal:g}", "reached" if reached else "missed")
        for title, peer, found, goal, reached in _ratios(results)
    ]
    return table(head, rows)


def _ratios(results: Results) -> list[tuple[str, str, float, float, bool]]:
    found = []
    for compared in results.problems.values():
        for peer, goal in GOALS[compared.net].items():
            if any(SIDES[name].framework == peer for name in compared.sides):
                times = ratio(compared, peer)
                found.append((compared.title, peer, times, goal, times >= goal))
    return found
